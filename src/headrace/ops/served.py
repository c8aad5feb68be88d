"""What a store serves of a view: its rows and its position, as of one moment, copied aside.

Every store is read as it is documented, by none of the follower's code, and let go before anything is derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.model.extras import needing
from headrace.model.kinds import Field
from headrace.model.schema_json import fields_from_json
from headrace.model.source import Sources
from headrace.model.store import Delta, Postgres, Redis, Search, SQLite
from headrace.model.store_place import file_of, prefix_of
from headrace.model.view import View
from headrace.ops.scratch import Scratch

__all__ = ["Served", "read_served", "served_of"]


@dataclass(frozen=True, slots=True)
class Served:
    where: str
    """The store, as it is shown."""
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
    """Of a flow that writes in real time: the last row from each partition of its input."""


def served_of(where: str, view: str, position: Mapping[str, Any], shape: str) -> Served:
    """``position`` has the parts of a position by their names, ``offsets`` by partition; ``shape`` is JSON."""
    told = msgspec.json.decode(shape)
    return Served(
        where=where,
        view=view,
        topic=position["topic"],
        topic_id=position["topic_id"],
        generation=position["generation"],
        batch=position["batch"],
        offsets={int(one): at for one, at in position["offsets"].items()},
        progress_id=position["progress_id"],
        progress_offset=position["progress_offset"],
        fields=fields_from_json(told["fields"]),
        key=tuple(told["key"]),
        sources=dict(position.get("sources", {})),
    )


def read_served(folder: Path, view: View, app: str, data: Path) -> tuple[Served, Scratch]:
    """The position, and the rows in a scratch file in ``folder``."""
    path = file_of(view, app, data)
    match view.store:
        case SQLite() if path is not None:
            from headrace.ops.served_sqlite import read_sqlite

            return read_sqlite(folder, path, view.name)
        case Postgres(url, schema):
            with needing("postgres", "psycopg"):
                from headrace.ops.served_postgres import read_postgres

            return read_postgres(folder, url, schema, view.name)
        case Redis(url):
            with needing("redis", "redis"):
                from headrace.ops.served_redis import read_redis

            return read_redis(folder, url, prefix_of(view, app), view.name)
        case Search() if path is not None:
            with needing("search", "tantivy"):
                from headrace.ops.served_search import read_search

            return read_search(folder, path, view.name)
        case Delta() if path is not None:
            with needing("delta", "deltalake"):
                from headrace.ops.served_delta import read_delta

            return read_delta(folder, path, view.name)
    raise NotImplementedError(view.store)
