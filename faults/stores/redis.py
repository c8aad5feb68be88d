"""Views on a Redis server, read with redis-py.

A fixture uses a database of the shared server. A fault run starts its own server with an append-only file.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import redis

from faults.servers.redis import RedisServer, fresh_database, running, shared
from faults.stores.port import FaultyStore, Snapshot, StoreFaults, StoreFixture
from headrace.model.store import Redis
from headrace.model.store import Store as Declared
from headrace.stores.redis import writer
from headrace.stores.redis.writer import RedisWriter
from headrace.stores.writer import StoreWriter

__all__ = ["FAULTS", "FIXTURE", "RedisFaults", "RedisFixture"]

# This is a script, so that no transaction runs between listing the keys and dumping them: a swap in between
# would rename the rows, and the backup would hold a position without rows.
_DUMP_ALL = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
    found[#found + 1] = key
    found[#found + 1] = redis.call('DUMP', key)
end
return found
"""


class RedisFixture(StoreFixture):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        database = fresh_database()
        # A long timeout, so that a slow server on a busy machine is not mistaken for a lost one.
        self.url = f"{shared().url}?db={database}&socket_timeout=120"
        self.client = shared().client(database)
        self.client.flushdb()

    def open(self, view: str = "sales") -> StoreWriter:
        return RedisWriter(self.url, "shop:", view)

    def read(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        transaction = self.client.pipeline(transaction=True)
        transaction.hmget(f"{{shop:{view}}}:headrace", "serving", "serving.shape").hgetall(f"shop:{view}")
        (position, shape), values_by_key = transaction.execute()
        if position is None:
            return None
        rows = [json.loads(value) for value in values_by_key.values()]
        key = json.loads(shape)["key"]
        rows.sort(key=lambda row: [row[name] for name in key])
        return json.loads(position)["batch"], [tuple(row.values()) for row in rows]

    def declared(self) -> Declared:
        return Redis(self.url)

    def opener(self) -> str:
        return f"headrace.stores.redis.writer:RedisWriter({self.url!r}, 'shop:', 'sales')"

    def close(self) -> None:
        self.client.flushdb()
        self.client.close()


class RedisFaults(StoreFaults):
    def store_class(self) -> type[Any]:
        return RedisWriter

    def fencing_module(self) -> ModuleType:
        return writer

    def open(self, store_class: type[Any], address: str, view: str) -> StoreWriter:
        return store_class(address, "shop:", view)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def create(self, home: Path) -> Iterator[FaultyStore]:
        with running("--appendonly", "yes") as server:
            yield FaultyRedis(server)


class FaultyRedis(FaultyStore):
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.address = server.url

    @contextlib.contextmanager
    def open_snapshot_reader(self, view: str) -> Iterator[Callable[[], Snapshot | None]]:
        client = self._server.client()
        try:
            yield functools.partial(_read_snapshot, client, view)
        finally:
            client.close()

    def stop(self) -> None:
        self._server.end()

    def start(self) -> None:
        self._server.start()

    def wipe(self) -> None:
        self._server.client().flushall()

    def back_up(self) -> object:
        keys_and_dumps = self._server.client().eval(_DUMP_ALL, 0)
        return dict(zip(keys_and_dumps[::2], keys_and_dumps[1::2], strict=True))

    def restore(self, backup: object) -> None:
        assert isinstance(backup, dict)
        transaction = self._server.client().pipeline(transaction=True)
        transaction.flushall()
        for key, dumped in backup.items():
            transaction.restore(key, 0, dumped)
        transaction.execute()


def _read_snapshot(client: Any, view: str) -> Snapshot | None:
    transaction = client.pipeline(transaction=True)
    transaction.hget(f"{{shop:{view}}}:headrace", "serving").hgetall(f"shop:{view}")
    try:
        position, values_by_key = transaction.execute()
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    if position is None:
        return None
    stored = json.loads(position)
    rows = {key.decode(): tuple(json.loads(value).values()) for key, value in values_by_key.items()}
    return stored["generation"], stored["batch"], rows


FIXTURE = RedisFixture
FAULTS = RedisFaults()
