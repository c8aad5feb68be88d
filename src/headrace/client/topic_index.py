"""An index of a single-partition topic: the newest record of each key, in a SQLite file.

The file can be deleted at any time, because it can be rebuilt from the topic. The rows and the offset of the next
record to read change in one SQLite transaction. After a crash the file may be behind the topic, and ``catch_up`` reads
the missing records. Several processes can share a file.

``synchronous`` is NORMAL instead of OFF. With OFF, a power loss could leave an offset in the file without the rows
before it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.files import create_private, make_private_dir

__all__ = ["IndexLayout", "TopicIndex", "open_index_file"]

_BUSY_S = 10.0
_ROWS_PER_WRITE = 1_000
_POSITION = """
CREATE TABLE place (only INTEGER PRIMARY KEY CHECK (only = 0), topic_id TEXT NOT NULL, next INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class IndexLayout:
    version: int
    table: str
    create: str
    """SQL that creates the table and its indexes."""
    insert: str
    """SQL that inserts or replaces one row."""


class TopicIndex:
    """A thread-safe index. ``row`` converts a record to the parameters of ``layout.insert``, or to None to skip it."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        path: Path | None,
        layout: IndexLayout,
        row: Callable[[Message], tuple[Any, ...] | None],
    ) -> None:
        """If ``path`` is None, the index is in memory."""
        self.topic = topic
        self._cluster = cluster
        self._layout = layout
        self._row = row
        self._lock = threading.RLock()
        self._database = open_index_file(path, layout.create + _POSITION, layout.version)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def catch_up(self, *, is_owner: bool = False) -> None:
        """Read the topic up to its end.

        ``is_owner`` means that no other process can write to the topic now. Then this method also waits for records
        that are committed but not yet visible. If the topic then ends before the index, it was restored from a backup,
        and the index is rebuilt.
        """
        with self._lock:
            info = self._cluster.topic(self.topic)
            start = end = 0
            if info is not None:
                start = self._cluster.starts(self.topic)[0]
                end = self._cluster.ends(self.topic, committed=not is_owner)[0]
            topic_id = info.id if info else ""
            position = self._database.execute("SELECT topic_id, next FROM place").fetchone()
            if position is None or position[0] != topic_id or (is_owner and position[1] > end):
                self._reset(topic_id, start)
                begin = start
            else:
                begin = max(start, position[1])
            if begin < end:
                self._read(begin, end)

    def add(self, rows: Iterable[tuple[Any, ...]], end: int) -> None:
        """Add rows. Afterwards the index must contain every record before offset ``end``."""
        with self._lock, self._transaction():
            self._database.executemany(self._layout.insert, rows)
            self._database.execute("UPDATE place SET next = max(next, ?)", (end,))

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(sql, parameters).fetchall()

    def delete(self, where: str, *parameters: Any) -> None:
        with self._lock, self._transaction():
            self._database.execute(f"DELETE FROM {self._layout.table} WHERE {where}", parameters)  # noqa: S608

    def _reset(self, topic_id: str, start: int) -> None:
        with self._transaction():
            self._database.execute(f"DELETE FROM {self._layout.table}")  # noqa: S608
            self._database.execute("REPLACE INTO place VALUES (0, ?, ?)", (topic_id, start))

    def _read(self, begin: int, end: int) -> None:
        """Read the records and insert their rows in short transactions. The file is never locked while this method
        waits for the log.
        """
        rows: list[tuple[Any, ...]] = []
        for message in read(self._cluster, self.topic, {0: (begin, end)}):
            row = self._row(message)
            if row is not None:
                rows.append(row)
            if len(rows) >= _ROWS_PER_WRITE:
                self.add(rows, (message.offset() or 0) + 1)
                rows = []
        self.add(rows, end)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


def open_index_file(path: Path | None, tables: str, version: int) -> sqlite3.Connection:
    """Open the file, or create it with its tables. A damaged file is replaced. Raises ``sqlite3.OperationalError`` if
    another process locks the file for too long.
    """
    if path is None:
        return _prepare(":memory:", tables, version)
    make_private_dir(path.parent)
    try:
        return _prepare(path, tables, version)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise
        for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            file.unlink(missing_ok=True)
        return _prepare(path, tables, version)


def _prepare(path: Path | str, tables: str, version: int) -> sqlite3.Connection:
    if isinstance(path, Path):
        create_private(path)
    database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")
        (stored,) = database.execute("PRAGMA user_version").fetchone()
        if stored != version:
            for statement in filter(str.strip, tables.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {version}")
        database.execute("COMMIT")
    except BaseException:
        database.close()
        raise
    return database
