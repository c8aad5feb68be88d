"""An index of topics in a SQLite file, for example the newest record of each key.

The file can be deleted at any time, because it can be rebuilt from the topics. The rows and the offsets of the next
records to read change in one SQLite transaction. After a crash the file may be behind the topics, and ``catch_up``
reads the missing records. Several processes can share a file.

``synchronous`` is NORMAL instead of OFF. With OFF, a power loss could leave an offset in the file without the rows
before it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.files import create_private, make_private_dir

__all__ = ["IndexLayout", "IndexRow", "IndexTable", "TopicBounds", "TopicIndex", "open_index_file"]

_BUSY_S = 10.0
_ROWS_PER_WRITE = 1_000
_POSITIONS = """
CREATE TABLE positions (topic TEXT, partition INTEGER, topic_id TEXT NOT NULL, next INTEGER NOT NULL,
                        PRIMARY KEY (topic, partition)) WITHOUT ROWID;
"""

IndexRow = tuple[str, tuple[Any, ...]]
"""The name of a table, and the parameters of its ``insert``."""


@dataclass(frozen=True, slots=True)
class IndexTable:
    insert: str
    """SQL that inserts or replaces one row."""
    has_location: bool = False
    """Whether a row has the columns ``topic``, ``partition`` and ``offset`` of its record. Then its row is removed when
    the log has deleted the record. An index of several topics needs these columns.
    """


@dataclass(frozen=True, slots=True)
class IndexLayout:
    version: int
    create: str
    """SQL that creates the tables and their indexes."""
    tables: Mapping[str, IndexTable]
    temporary: str = ""
    """SQL that creates the temporary tables of each connection."""


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """The offsets of a topic, by partition."""

    id: str
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)


class TopicIndex:
    """A thread-safe index. ``row`` converts a record to a row, or to None to skip it."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str],
        path: Path | None,
        layout: IndexLayout,
        row: Callable[[Message], IndexRow | None],
    ) -> None:
        """If ``path`` is None, the index is in memory."""
        self.topics = tuple(topics)
        self._cluster = cluster
        self._layout = layout
        self._row = row
        self._lock = threading.RLock()
        self._database = open_index_file(path, layout.create + _POSITIONS, layout.version)
        for statement in filter(str.strip, layout.temporary.split(";")):
            self._database.execute(statement)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def catch_up(
        self,
        *,
        owned: Collection[str] = (),
        bounds: Mapping[str, TopicBounds] | None = None,
        records_max: int | None = None,
    ) -> bool:
        """Read the topics up to their ends, but at most ``records_max`` records. Return whether all were read.

        ``owned`` are topics to which no other process can write now. For these, this method also waits for records that
        are committed but not yet visible. If such a topic then ends before the index, it was restored from a backup,
        and its rows are read again.

        ``bounds`` are the current bounds of the topics, if the caller knows them. A topic without bounds does not
        exist.
        """
        left = records_max
        with self._lock:
            for topic in self.topics:
                known = None if bounds is None or topic in owned else bounds.get(topic, TopicBounds(""))
                limits = known or self._bounds(topic, is_owner=topic in owned)
                ranges = self._unread(topic, limits, is_owner=topic in owned)
                if left is not None:
                    ranges = {number: (low, min(high, low + left)) for number, (low, high) in ranges.items()}
                count = sum(high - low for low, high in ranges.values())
                if count:
                    self._read(topic, limits.id, ranges)
                left = None if left is None else max(0, left - count)
            return left is None or left > 0

    def add(self, topic: str, rows: Iterable[IndexRow], end: int) -> None:
        """Add rows of the topic's only partition. Afterwards the index must contain every record before ``end``."""
        with self._lock, self._transaction():
            self._insert(rows)
            self._database.execute(
                "UPDATE positions SET next = max(next, ?) WHERE topic = ? AND partition = 0", (end, topic)
            )

    def unread(self, bounds: Mapping[str, TopicBounds]) -> dict[str, int]:
        """Return the number of offsets that the index has not read, by topic."""
        with self._lock:
            return {
                topic: sum(
                    max(0, end - max(limits.starts.get(number, 0), self._next(topic, number, limits.id) or 0))
                    for number, end in limits.ends.items()
                )
                for topic, limits in bounds.items()
                if topic in self.topics
            }

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(sql, parameters).fetchall()

    def changes(self) -> tuple[Any, ...]:
        """Return a value that differs after the index has changed."""
        return tuple(self.query("SELECT * FROM positions ORDER BY topic, partition"))

    def delete(self, table: str, where: str, *parameters: Any) -> None:
        with self._lock, self._transaction():
            self._database.execute(f"DELETE FROM {table} WHERE {where}", parameters)  # noqa: S608

    def replace_temporary(self, tables: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Replace all rows of temporary tables."""
        with self._lock, self._transaction():
            for table, rows in tables.items():
                self._database.execute(f"DELETE FROM temp.{table}")  # noqa: S608
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    self._database.executemany(f"INSERT INTO temp.{table} VALUES ({marks})", rows)  # noqa: S608

    def _bounds(self, topic: str, *, is_owner: bool) -> TopicBounds:
        info = self._cluster.topic(topic)
        if info is None:
            return TopicBounds("")
        ends = self._cluster.ends(topic, committed=not is_owner)
        return TopicBounds(info.id, self._cluster.starts(topic), ends)

    def _next(self, topic: str, partition: int, topic_id: str) -> int | None:
        """Return the offset of the next record to read; None if the index belongs to an earlier topic of the name."""
        row = self._database.execute(
            "SELECT topic_id, next FROM positions WHERE topic = ? AND partition = ?", (topic, partition)
        ).fetchone()
        return int(row[1]) if row is not None and row[0] == topic_id else None

    def _unread(self, topic: str, limits: TopicBounds, *, is_owner: bool) -> dict[int, tuple[int, int]]:
        """Return the ranges of offsets to read. Remove the rows of records that the log has deleted."""
        stored = self._database.execute(
            "SELECT partition, topic_id, next FROM positions WHERE topic = ?", (topic,)
        ).fetchall()
        is_restored = is_owner and any(end > limits.ends.get(number, 0) for number, _, end in stored)
        if is_restored or any(topic_id != limits.id for _, topic_id, _ in stored):
            self._reset(topic)
            stored = []
        next_offsets = {number: offset for number, _, offset in stored}
        ranges = {}
        for number, end in limits.ends.items():
            start = limits.starts.get(number, 0)
            ranges[number] = (max(start, next_offsets.get(number, 0)), end)
            if number not in next_offsets:
                self._write(topic, limits.id, (), {number: start})
            elif start:
                self._trim(topic, number, start)
        return {number: (low, high) for number, (low, high) in ranges.items() if low < high}

    def _trim(self, topic: str, partition: int, start: int) -> None:
        for name, table in self._layout.tables.items():
            if table.has_location:
                where = "topic = ? AND partition = ? AND offset < ?"
                if self.query(f"SELECT 1 FROM {name} WHERE {where} LIMIT 1", topic, partition, start):  # noqa: S608
                    self.delete(name, where, topic, partition, start)

    def _reset(self, topic: str) -> None:
        with self._transaction():
            for name, table in self._layout.tables.items():
                where, parameters = ("topic = ?", (topic,)) if table.has_location else ("true", ())
                self._database.execute(f"DELETE FROM {name} WHERE {where}", parameters)  # noqa: S608
            self._database.execute("DELETE FROM positions WHERE topic = ?", (topic,))

    def _read(self, topic: str, topic_id: str, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Read the records and insert their rows in short transactions. The file is never locked while this method
        waits for the log.
        """
        rows: list[IndexRow] = []
        next_offsets: dict[int, int] = {}
        for message in read(self._cluster, topic, ranges):
            row = self._row(message)
            if row is not None:
                rows.append(row)
            next_offsets[message.partition() or 0] = (message.offset() or 0) + 1
            if len(rows) >= _ROWS_PER_WRITE:
                self._write(topic, topic_id, rows, next_offsets)
                rows = []
        self._write(topic, topic_id, rows, {number: high for number, (_, high) in ranges.items()})

    def _write(
        self, topic: str, topic_id: str, rows: Iterable[IndexRow], next_offsets: Mapping[int, int]
    ) -> None:
        with self._transaction():
            self._insert(rows)
            self._database.executemany(
                """
                INSERT INTO positions VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE
                SET next = iif(topic_id = excluded.topic_id, max(next, excluded.next), excluded.next),
                    topic_id = excluded.topic_id
                """,
                [(topic, number, topic_id, offset) for number, offset in next_offsets.items()],
            )

    def _insert(self, rows: Iterable[IndexRow]) -> None:
        by_table: dict[str, list[tuple[Any, ...]]] = {}
        for table, parameters in rows:
            by_table.setdefault(table, []).append(parameters)
        for table, parameters_of_rows in by_table.items():
            self._database.executemany(self._layout.tables[table].insert, parameters_of_rows)

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
