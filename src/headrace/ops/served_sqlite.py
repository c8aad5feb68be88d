"""What a SQLite file serves of a view.

The file is read as it is documented: ``_headrace_views`` has a row per view and part, of which the part
``serving`` counts, with the name of the table that holds the rows. One read transaction covers both, so position and
rows belong together, and the follower goes on meanwhile. The copy is made by SQLite itself, and quickly; the file is
let go before anything is derived.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.ops.errors import NotServed, StoreUnreadable
from headrace.ops.plain_rows import Column, column_type
from headrace.ops.scratch import Scratch
from headrace.ops.served import Served, served_of

__all__ = ["read_sqlite"]

_BUSY_MS = 10_000


def read_sqlite(folder: Path, path: Path, view: str) -> tuple[Served, Scratch]:
    """The position, and the rows in a scratch file in ``folder``."""
    if not path.exists():
        raise NotServed(
            f"there is no {path}",
            hint=f"nothing follows view {view} yet: headrace run, or headrace view follow",
        )
    connection = Scratch.open(folder)
    try:
        with _told(path):
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            connection.execute("ATTACH ? AS store", (_uri(path),))
            connection.execute("BEGIN")
            served, table = _standing(connection, path, view)
            columns = [(one.name, column_type(one)) for one in served.fields]
            _expect_table(connection, path, view, table, columns, served.key)
            scratch = Scratch(connection, columns, served.key)
            names = ", ".join(_quoted(name) for name, _ in columns)
            connection.execute(f"INSERT INTO found SELECT {names} FROM store.{_quoted(table)}")  # noqa: S608
            connection.execute("COMMIT")
            connection.execute("DETACH store")
    except BaseException:
        connection.close()
        raise
    return served, scratch


def _standing(store: sqlite3.Connection, path: Path, view: str) -> tuple[Served, str]:
    known = store.execute("SELECT 1 FROM store.sqlite_master WHERE name = '_headrace_views'").fetchone()
    if known is None:
        raise NotServed(f"{path} holds no views", hint="is it the file that the view's store names?")
    # A file that no follower of this release has opened yet is without the last one.
    new = store.execute(
        "SELECT 1 FROM pragma_table_info('_headrace_views', 'store') WHERE name = 'sources'"
    ).fetchone()
    sources = "sources" if new else "'{}'"
    found = store.execute(
        f"SELECT name, topic, topic_id, generation, batch, progress_id, progress_offset, offsets, {sources}, shape"  # noqa: S608
        " FROM store._headrace_views WHERE view = ? AND part = 'serving'",
        (view,),
    ).fetchone()
    if found is None:
        raise NotServed(
            f"view {view} does not serve in {path} yet", hint="it is being built, or nothing follows it"
        )
    table, *position, shape = found
    names = (
        "topic",
        "topic_id",
        "generation",
        "batch",
        "progress_id",
        "progress_offset",
        "offsets",
        "sources",
    )
    told = dict(zip(names, position, strict=True))
    for name in ("offsets", "sources"):
        told[name] = msgspec.json.decode(told[name])
    return served_of(str(path), view, told, shape), table


def _expect_table(
    store: sqlite3.Connection, path: Path, view: str, table: str, columns: list[Column], key: tuple[str, ...]
) -> None:
    """A table that somebody has made anew is not read: it may hold a key twice, or columns of another meaning."""
    found = store.execute(
        "SELECT name, pk FROM pragma_table_info(?, 'store') ORDER BY cid", (table,)
    ).fetchall()
    names = [name for name, _ in found]
    keys = [name for name, _ in sorted((one for one in found if one[1]), key=lambda one: int(one[1]))]
    if names != [name for name, _ in columns] or keys != list(key):
        raise StoreUnreadable(
            f"table {table} of view {view} in {path} is not as its follower made it",
            detail=f"it has the columns {', '.join(names) or '(none)'} and the key {', '.join(keys) or '(none)'}",
            hint="headrace view rebuild makes it anew; rather than changing it, make a view of your own on top",
        )


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnreadable(
            f"{path} cannot be read: {error} ({getattr(error, 'sqlite_errorname', 'no code')})",
            hint="if it is damaged, move it away, with its -wal and -shm: the views are built again from the log",
        ) from error


def _uri(path: Path) -> str:
    return f"file:{quote(str(path.absolute()))}?mode=ro"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
