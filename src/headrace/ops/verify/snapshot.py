"""A snapshot of a view in a store: a copy of its rows and its position at one moment.

Each kind of store is read by its documented format, without code of followers and stores. The connection to the store
is closed before rows are derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.model.declarations import View
from headrace.model.errors import needing
from headrace.model.kinds import Field
from headrace.model.progress import Sources
from headrace.model.schema import fields_from_json
from headrace.model.store import Delta, Postgres, Redis, Search, SQLite, file_of, prefix_of
from headrace.ops.verify.comparison import Scratch
from headrace.ops.verify.errors import NotServed, StoreUnreadable

__all__ = ["StoreSnapshot", "changed_table", "not_serving", "read_snapshot", "snapshot_of"]


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    where: str
    """The address of the store, without secrets, for messages."""
    view: str
    topic: str
    topic_id: str
    generation: int
    batch: int
    offsets: dict[int, int]
    progress_id: str
    progress_offset: int
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    sources: Sources
    """For a real-time flow: the source of the last row from each partition of the flow's input."""
    upcast: str = ""
    """The digest of the upcasters that converted the rows."""


def snapshot_of(where: str, view: str, position: Mapping[str, Any], schema: str) -> StoreSnapshot:
    """Create a snapshot. ``position`` has the fields of a position by name; ``schema`` is JSON."""
    decoded = msgspec.json.decode(schema)
    return StoreSnapshot(
        where=where,
        view=view,
        topic=position["topic"],
        topic_id=position["topic_id"],
        generation=position["generation"],
        batch=position["batch"],
        offsets={int(number): offset for number, offset in position["offsets"].items()},
        progress_id=position["progress_id"],
        progress_offset=position["progress_offset"],
        fields=fields_from_json(decoded["fields"]),
        key=tuple(decoded["key"]),
        sources=dict(position.get("sources", {})),
        upcast=decoded.get("upcast", ""),
    )


def read_snapshot(folder: Path, view: View, app: str, data: Path) -> tuple[StoreSnapshot, Scratch]:
    """Return the position, and the rows in a scratch file in ``folder``."""
    path = file_of(view, app, data)
    match view.store:
        case SQLite() if path is not None:
            from headrace.ops.verify.sqlite_snapshot import read_sqlite

            return read_sqlite(folder, path, view.name)
        case Postgres(url, schema):
            with needing("postgres", "psycopg"):
                from headrace.ops.verify.postgres_snapshot import read_postgres

            return read_postgres(folder, url, schema, view.name)
        case Redis(url):
            with needing("redis", "redis"):
                from headrace.ops.verify.redis_snapshot import read_redis

            return read_redis(folder, url, prefix_of(view, app), view.name)
        case Search() if path is not None:
            with needing("search", "tantivy"):
                from headrace.ops.verify.search_snapshot import read_search

            return read_search(folder, path, view.name)
        case Delta() if path is not None:
            with needing("delta", "deltalake"):
                from headrace.ops.verify.delta_snapshot import read_delta

            return read_delta(folder, path, view.name)
    raise NotImplementedError(view.store)


def not_serving(view: str, where: str) -> NotServed:
    return NotServed(
        f"{where} does not serve view {view} yet",
        hint="wait until the view is built; if no follower runs, start headrace run or headrace view follow",
    )


def changed_table(view: str, table: str, where: str, columns: str, key: str) -> StoreUnreadable:
    """A changed table is not compared: its keys might not be unique, or its columns might have another meaning."""
    return StoreUnreadable(
        f"table {table} of view {view} in {where} was changed after its follower created it",
        detail=f"the table has the columns {columns or '(none)'} and the key {key or '(none)'}",
        hint="recreate it with headrace view rebuild; define an SQL view instead of changing the table",
    )
