"""A snapshot of a view in a SQLite file.

``_headrace_views`` has one row for each part of a view. The row of the part ``serving`` has the position, and
the name of the table with the rows. One read transaction reads both, so position and rows belong together.
The follower can continue to write meanwhile. SQLite itself copies the rows, which is fast.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.ops.verify.comparison import Scratch
from headrace.ops.verify.errors import NotServed, StoreUnreadable
from headrace.ops.verify.plain_rows import Column, column_type
from headrace.ops.verify.snapshot import StoreSnapshot, changed_table, not_serving, snapshot_of

__all__ = ["read_sqlite"]

_BUSY_MS = 10_000


def read_sqlite(folder: Path, path: Path, view: str) -> tuple[StoreSnapshot, Scratch]:
    """Return the position, and the rows in a scratch file in ``folder``."""
    if not path.exists():
        raise NotServed(
            f"file {path} does not exist",
            hint=f"no follower has built view {view} yet; start one with headrace run or headrace view follow",
        )
    connection = Scratch.open(folder)
    try:
        with _translate_errors(path):
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            connection.execute("ATTACH ? AS store", (_uri(path),))
            connection.execute("BEGIN")
            snapshot, table = _read_state(connection, path, view)
            columns = [(field.name, column_type(field)) for field in snapshot.fields]
            _check_table(connection, path, view, table, columns, snapshot.key)
            scratch = Scratch(connection, columns, snapshot.key)
            names = ", ".join(_quoted(name) for name, _ in columns)
            connection.execute(f"INSERT INTO found SELECT {names} FROM store.{_quoted(table)}")  # noqa: S608
            connection.execute("COMMIT")
            connection.execute("DETACH store")
    except BaseException:
        connection.close()
        raise
    return snapshot, scratch


def _read_state(store: sqlite3.Connection, path: Path, view: str) -> tuple[StoreSnapshot, str]:
    catalog = store.execute("SELECT 1 FROM store.sqlite_master WHERE name = '_headrace_views'").fetchone()
    if catalog is None:
        raise NotServed(f"{path} contains no views", hint="check that this is the file of the view's store")
    # The column ``sources`` is missing until a follower of this release has opened the file.
    has_sources = store.execute(
        "SELECT 1 FROM pragma_table_info('_headrace_views', 'store') WHERE name = 'sources'"
    ).fetchone()
    sources = "sources" if has_sources else "'{}'"
    found = store.execute(
        f"SELECT name, topic, topic_id, generation, batch, progress_id, progress_offset, offsets, {sources}, shape"  # noqa: S608
        " FROM store._headrace_views WHERE view = ? AND part = 'serving'",
        (view,),
    ).fetchone()
    if found is None:
        raise not_serving(view, str(path))
    table, *values, schema = found
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
    position = dict(zip(names, values, strict=True))
    for name in ("offsets", "sources"):
        position[name] = msgspec.json.decode(position[name])
    return snapshot_of(str(path), view, position, schema), table


def _check_table(
    store: sqlite3.Connection, path: Path, view: str, table: str, columns: list[Column], key: tuple[str, ...]
) -> None:
    found = store.execute(
        "SELECT name, pk FROM pragma_table_info(?, 'store') ORDER BY cid", (table,)
    ).fetchall()
    names = [name for name, _ in found]
    keys = [name for name, key_number in sorted(found, key=lambda column: int(column[1])) if key_number]
    if names != [name for name, _ in columns] or keys != list(key):
        raise changed_table(view, table, str(path), ", ".join(names), ", ".join(keys))


@contextlib.contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnreadable(
            f"cannot read {path}: {error} ({getattr(error, 'sqlite_errorname', 'no code')})",
            hint="if the file is damaged, move it away, with its -wal and -shm files: the followers rebuild the views",
        ) from error


def _uri(path: Path) -> str:
    return f"file:{quote(str(path.absolute()))}?mode=ro"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
