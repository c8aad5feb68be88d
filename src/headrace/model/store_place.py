"""Where the store of a view is, by its declaration and the data directory."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from headrace.model.address import shown
from headrace.model.store import Delta, OnRead, Postgres, Redis, Search, SQLite
from headrace.model.view import View

__all__ = ["file_of", "prefix_of", "where_is"]


def file_of(view: View, app: str, data: Path) -> Path | None:
    """Where a store of files is: the path that the view names, or one in the data directory that the app's views share,
    so that they can be joined. None for a server, and for what is computed on read.
    """
    match view.store:
        case SQLite(path):
            return Path(path) if path else data / f"{app}.db"
        case Search(path):
            return Path(path) if path else data / f"{app}.search"
        case Delta(path):
            return Path(path) if path else data / f"{app}.lake"
        case Postgres() | Redis() | OnRead():
            return None
        case _ as never:
            assert_never(never)


def where_is(view: View, app: str, data: Path) -> str:
    """For people: no passwords."""
    match view.store:
        case Postgres(url, schema):
            return f"{shown(url)}, schema {schema}"
        case Redis(url):
            return f"{shown(url)}, prefix {prefix_of(view, app)}"
        case OnRead():
            return "computed on read"
    return str(file_of(view, app, data))


def prefix_of(view: View, app: str) -> str:
    """Of a view's keys in Redis."""
    return (view.store.prefix if isinstance(view.store, Redis) else "") or f"{app}:"
