"""Opens the store of a view. Only this module distinguishes the kinds of stores.

It imports each kind when it is first used, because most kinds need an optional dependency of the package.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.declarations import View
from headrace.model.errors import needing
from headrace.model.store import Delta, OnRead, Postgres, Redis, Search, SQLite, file_of, prefix_of
from headrace.stores.errors import StoreUnusable
from headrace.stores.position import ViewSchema
from headrace.stores.reader import StoreReader
from headrace.stores.writer import RowLimits, StoreWriter

if TYPE_CHECKING:
    from headrace.stores.arrow import ArrowReader, Deadline
    from headrace.stores.sqlite.reader import SqliteReader

__all__ = [
    "StoreLocation",
    "check_store",
    "location_of",
    "open_arrow_reader",
    "open_reader",
    "open_sqlite",
    "open_writer",
    "row_limits",
]

_FILES = ("sqlite", "search", "delta")
_LIBRARIES = {"search": "tantivy", "delta": "deltalake"}
_NOT_CREATED = "the first start creates it"


class StoreLocation(msgspec.Struct, frozen=True):
    """The location of a store, in a form that can be sent to another process."""

    kind: str
    address: str
    """A path or a URL. A URL can contain the name of an environment variable."""
    namespace: str = ""
    """The schema in PostgreSQL, or the prefix of keys in Redis."""
    key: str = ""
    """The name of the view in Redis, where a location has only one view; otherwise empty."""


def location_of(view: View, app: str, data: Path) -> StoreLocation | None:
    """Return the location of the view's store, or None for a view that is computed on read.

    Two views have equal locations if one transaction can read both.
    """
    match view.store:
        case Postgres(url, schema):
            return StoreLocation("postgres", url, schema)
        case Redis(url):
            return StoreLocation("redis", url, prefix_of(view, app), view.name)
        case SQLite():
            return StoreLocation("sqlite", str(file_of(view, app, data)))
        case Search():
            return StoreLocation("search", str(file_of(view, app, data)))
        case Delta():
            return StoreLocation("delta", str(file_of(view, app, data)))
        case OnRead():
            return None


def open_writer(view: View, app: str, data: Path) -> StoreWriter:
    """Open a writer. Create the store unless it exists."""
    location = location_of(view, app, data)
    if location is None:
        raise NotImplementedError(view.store)
    address, path = location.address, Path(location.address)
    match location.kind:
        case "sqlite":
            from headrace.stores.sqlite.writer import SqliteWriter

            return SqliteWriter(path, view.name)
        case "postgres":
            with needing("postgres", "psycopg"):
                from headrace.stores.postgres.writer import PostgresWriter

            return PostgresWriter(address, location.namespace, view.name)
        case "redis":
            with needing("redis", "redis"):
                from headrace.stores.redis.writer import RedisWriter

            return RedisWriter(address, location.namespace, view.name)
        case "search":
            with needing("search", "tantivy"):
                from headrace.stores.search.writer import SearchWriter

            fields = view.store.fields if isinstance(view.store, Search) else ()
            return SearchWriter(path, view.name, fields)
        case "delta":
            with needing("delta", "deltalake"):
                from headrace.stores.delta.writer import DeltaWriter

            return DeltaWriter(path, view.name)
    raise NotImplementedError(location.kind)


def open_reader(view: View, app: str, data: Path) -> StoreReader | None:
    """Open a reader. Return None if no follower has created the store yet."""
    location = location_of(view, app, data)
    if location is None:
        raise NotImplementedError(view.store)
    return _open_reader(location)


def _open_reader(location: StoreLocation) -> StoreReader | None:
    address, path = location.address, Path(location.address)
    if location.kind in _FILES and not path.exists():
        return None
    match location.kind:
        case "sqlite":
            return open_sqlite(path)
        case "postgres":
            with needing("postgres", "psycopg"):
                from headrace.stores.postgres.reader import PostgresReader

            reader = PostgresReader(address, location.namespace)
            if reader.is_created():
                return reader
            reader.close()
            return None
        case "redis":
            with needing("redis", "redis"):
                from headrace.stores.redis.reader import RedisReader

            return RedisReader(address, location.namespace, location.key)
        case "search":
            with needing("search", "tantivy"):
                from headrace.stores.search.reader import SearchReader

            return SearchReader(path)
        case "delta":
            with needing("delta", "deltalake"):
                from headrace.stores.delta.reader import DeltaReader

            return DeltaReader(path)
    raise NotImplementedError(location.kind)


def open_sqlite(path: Path) -> SqliteReader | None:
    """Open a reader. Return None if the file does not exist, or if a follower is still creating it."""
    from headrace.stores.sqlite.reader import SqliteReader

    if not path.exists():
        return None
    reader = SqliteReader(path)
    if reader.is_created:
        return reader
    reader.close()
    return None


@contextlib.contextmanager
def open_arrow_reader(
    location: StoreLocation, remaining_s: Deadline, sessions: dict[tuple[str, str], Any]
) -> Iterator[ArrowReader | None]:
    """Open a reader for one statement. Yield None if no follower has created the store yet.

    ``sessions`` stores connections for later statements.
    """
    path = Path(location.address)
    if location.kind in _FILES and not path.exists():
        yield None
        return
    match location.kind:
        case "sqlite":
            from headrace.stores.sqlite.arrow import sqlite_arrow_reader

            with sqlite_arrow_reader(path, remaining_s) as sqlite:
                yield sqlite
        case "postgres":
            with needing("postgres", "psycopg"):
                from headrace.stores.postgres.arrow import postgres_arrow_reader

            with postgres_arrow_reader(
                location.address, location.namespace, remaining_s, sessions
            ) as postgres:
                yield postgres
        case "delta":
            with needing("delta", "deltalake"):
                from headrace.stores.delta.reader import DeltaArrowReader

            yield DeltaArrowReader(path, remaining_s)
        case _:
            from headrace.stores.arrow import QueryArrowReader

            reader = _open_reader(location)
            if reader is None:
                yield None
                return
            with contextlib.closing(reader):
                yield QueryArrowReader(reader, remaining_s)


def check_store(view: View, app: str, data: Path) -> str:
    """Raise if a follower cannot use the view's store. Return a remark for people, or an empty text.

    This does not change the store.
    """
    location = location_of(view, app, data)
    if location is None:
        return ""
    match location.kind:
        case "postgres":
            with needing("postgres", "psycopg"):
                from headrace.stores.postgres.reader import check_schema

            return "" if check_schema(location.address, location.namespace) else _NOT_CREATED
        case "redis":
            with needing("redis", "redis"):
                from headrace.stores.redis.reader import check_server

            return check_server(location.address)
    path = Path(location.address)
    if location.kind in _LIBRARIES:
        with needing(location.kind, _LIBRARIES[location.kind]):
            importlib.import_module(_LIBRARIES[location.kind])
    exists = path.exists()
    existing = path if exists else next(parent for parent in path.absolute().parents if parent.exists())
    is_usable = existing.is_dir() or exists
    if not is_usable or not os.access(existing, os.W_OK | (os.X_OK if existing.is_dir() else 0)):
        raise StoreUnusable(
            f"{existing} is not writable", hint="change its permissions, or choose another path for the store"
        )
    if not exists:
        return _NOT_CREATED
    reader = _open_reader(location)
    if reader is not None:
        with contextlib.closing(reader):
            reader.views()
    return ""


def row_limits(view: View, schema: ViewSchema) -> RowLimits | None:
    """Return the limits of the view's store without opening the store (see ``StoreWriter.limits``)."""
    if not isinstance(view.store, Postgres):
        return None
    with needing("postgres", "psycopg"):
        from headrace.stores.postgres.table import row_limits as postgres_limits

    return postgres_limits(schema)
