"""Views in a database of Redis, seen by redis-py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.model.store import Redis
from headrace.model.store import Store as Declared
from headrace.views.redis.store import RedisStore
from headrace.views.store import Store
from tests.contract.see import See
from tests.support.redis import fresh_database, shared

__all__ = ["SeeRedis"]


class SeeRedis(See):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        database = fresh_database()
        # A busy machine is not a server that is gone.
        self.url = f"{shared().url}?db={database}&socket_timeout=120"
        self.client = shared().client(database)
        self.client.flushdb()

    def open(self, view: str = "sales") -> Store:
        return RedisStore(self.url, "shop:", view)

    def look(self, view: str = "sales") -> tuple[int, list[tuple[Any, ...]]] | None:
        both = self.client.pipeline(transaction=True)
        both.hmget(f"{{shop:{view}}}:headrace", "serving", "serving.shape").hgetall(f"shop:{view}")
        (position, shape), found = both.execute()
        if position is None:
            return None
        rows = [json.loads(value) for value in found.values()]
        key = json.loads(shape)["key"]
        rows.sort(key=lambda row: [row[name] for name in key])
        return json.loads(position)["batch"], [tuple(row.values()) for row in rows]

    def declared(self) -> Declared:
        return Redis(self.url)

    def opener(self) -> str:
        return f"headrace.views.redis.store:RedisStore({self.url!r}, 'shop:', 'sales')"

    def close(self) -> None:
        self.client.flushdb()
        self.client.close()
