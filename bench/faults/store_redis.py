"""Views in a Redis server, for faults: a server for each run, which keeps what it has in an append-only file."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.faults.store_place import Seen, StoreKind, StorePlace
from headrace.views.store import Store

if TYPE_CHECKING:
    from tests.support.redis import RedisServer

__all__ = ["RedisKind"]


class RedisKind(StoreKind):
    def product(self) -> type[Any]:
        from headrace.views.redis.store import RedisStore

        return RedisStore

    def fencing(self) -> ModuleType:
        from headrace.views.redis import store

        return store

    def open(self, product: type[Any], address: str, view: str) -> Store:
        return product(address, "shop:", view)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def place(self, home: Path) -> Iterator[StorePlace]:
        from tests.support.redis import running

        with running("--appendonly", "yes") as server:
            yield RedisPlace(server)


class RedisPlace(StorePlace):
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.address = server.url

    @contextlib.contextmanager
    def watching(self, view: str) -> Iterator[Callable[[], Seen | None]]:
        client = self._server.client()
        try:
            yield functools.partial(_look, client, view)
        finally:
            client.close()

    def stop(self) -> None:
        self._server.end()

    def start(self) -> None:
        self._server.start()

    def wipe(self) -> None:
        self._server.client().flushall()

    def keep(self) -> object:
        client = self._server.client()
        keys = list(client.scan_iter())
        at_once = client.pipeline(transaction=True)
        for key in keys:
            at_once.dump(key)
        return dict(zip(keys, at_once.execute(), strict=True))

    def restore(self, kept: object) -> None:
        assert isinstance(kept, dict)
        at_once = self._server.client().pipeline(transaction=True)
        at_once.flushall()
        for key, dumped in kept.items():
            if dumped is not None:
                at_once.restore(key, 0, dumped)
        at_once.execute()


def _look(client: Any, view: str) -> Seen | None:
    import redis

    at_once = client.pipeline(transaction=True)
    at_once.hget(f"{{shop:{view}}}:headrace", "serving").hgetall(f"shop:{view}")
    try:
        position, found = at_once.execute()
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    if position is None:
        return None
    told = json.loads(position)
    rows = {key.decode(): tuple(json.loads(value).values()) for key, value in found.items()}
    return told["generation"], told["batch"], rows
