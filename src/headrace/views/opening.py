"""The store of a view, as it is declared. Each kind is imported when it is used: most are extras of the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.extras import needing
from headrace.model.store import Delta, Postgres, Redis, Search, SQLite
from headrace.model.store_place import file_of, prefix_of
from headrace.model.view import View
from headrace.views.asking import Asker
from headrace.views.reader import Reader
from headrace.views.store import Store

if TYPE_CHECKING:
    from headrace.views.sqlite_reading import SqliteReader

__all__ = ["open_asker", "open_reader", "open_store", "sqlite_reader"]


def open_store(view: View, app: str, data: Path) -> Store:
    path = file_of(view, app, data)
    match view.store:
        case SQLite() if path is not None:
            from headrace.views.sqlite import SqliteStore

            return SqliteStore(path, view.name)
        case Postgres(url, schema):
            with needing("postgres", "psycopg"):
                from headrace.views.postgres.store import PostgresStore

            return PostgresStore(url, schema, view.name)
        case Redis(url):
            with needing("redis", "redis"):
                from headrace.views.redis.store import RedisStore

            return RedisStore(url, prefix_of(view, app), view.name)
        case Search(_, fields) if path is not None:
            with needing("search", "tantivy"):
                from headrace.views.search.store import SearchStore

            return SearchStore(path, view.name, fields)
        case Delta() if path is not None:
            with needing("delta", "deltalake"):
                from headrace.views.delta.store import DeltaStore

            return DeltaStore(path, view.name)
    raise NotImplementedError(view.store)


def open_reader(view: View, app: str, data: Path) -> Reader | None:
    """None where nothing has been made yet."""
    path = file_of(view, app, data)
    if path is not None and not path.exists():
        return None
    match view.store:
        case SQLite() if path is not None:
            return sqlite_reader(path)
        case Postgres(url, schema):
            with needing("postgres", "psycopg"):
                from headrace.views.postgres.reading import PostgresReader

            reader = PostgresReader(url, schema)
            if reader.is_made():
                return reader
            reader.close()
            return None
        case Redis(url):
            with needing("redis", "redis"):
                from headrace.views.redis.reading import RedisReader

            return RedisReader(url, prefix_of(view, app), view.name)
        case Search() if path is not None:
            with needing("search", "tantivy"):
                from headrace.views.search.reading import SearchReader

            return SearchReader(path)
        case Delta() if path is not None:
            with needing("delta", "deltalake"):
                from headrace.views.delta.reading import DeltaReader

            return DeltaReader(path)
    raise NotImplementedError(view.store)


def sqlite_reader(path: Path) -> SqliteReader | None:
    """None where there is no file, or one that a follower has only begun to make."""
    from headrace.views.sqlite_reading import SqliteReader

    if not path.exists():
        return None
    reader = SqliteReader(path)
    if reader.is_made:
        return reader
    reader.close()
    return None


def open_asker(view: View, app: str, data: Path) -> Asker | None:
    """None where nothing has been made yet."""
    path = file_of(view, app, data)
    if path is not None and not path.exists():
        return None
    match view.store:
        case SQLite() if path is not None:
            from headrace.views.sqlite_asking import SqliteAsker

            made = SqliteAsker(path)
            if made.is_made:
                return made
            made.close()
            return None
        case Postgres(url, schema):
            with needing("postgres", "psycopg"):
                from headrace.views.postgres.asking import PostgresAsker

            asker = PostgresAsker(url, schema)
            if asker.is_made():
                return asker
            asker.close()
            return None
        case Redis(url):
            with needing("redis", "redis"):
                from headrace.views.redis.asking import RedisAsker

            return RedisAsker(url, prefix_of(view, app), view.name)
        case Search() if path is not None:
            with needing("search", "tantivy"):
                from headrace.views.search.asking import SearchAsker

            return SearchAsker(path)
        case Delta() if path is not None:
            with needing("delta", "deltalake"):
                from headrace.views.delta.asking import DeltaAsker

            return DeltaAsker(path)
    raise NotImplementedError(view.store)
