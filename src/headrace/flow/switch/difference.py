"""The difference between two topics with the rows of one flow: the stable topic, and the topic of a generation.

Both topics are read into a SQLite file: per row its key, its number among the rows of the key, a digest of its value
and its offset. If a row replaces the earlier rows of its key (``only_last``), only the last one counts; else every row
does. ``advance`` reads on from where it stopped, and compares again only the keys of the records that are new. So the
first comparison takes as long as the topics are large, and the later ones only as long as their tails.

Readers of the stable topic shall see the rows of the generation. From the first difference of a key on, all rows of the
key are published again, and at least its last one. A key without rows gets a tombstone.

Where every row counts, each published record has its number among the rows of its key (header ``headrace.row``). It
replaces the row that had this number, and all later ones. So the next switch compares with the rows that are valid
since this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.records import read
from headrace.client.transactional_writer import OutgoingRecord

__all__ = ["ROW_HEADER", "SWITCH_HEADER", "Difference", "DifferenceCounts", "SampleRow"]

SWITCH_HEADER = "headrace.switch"
"""The header of every record that a switch publishes. Its value is, for example, ``1>2``."""
ROW_HEADER = "headrace.row"
"""The header with the number of a published row among the rows of its key, from 0, where every row counts."""
_SAMPLES = 5
_SAMPLE_CHARS = 300
_DIGEST_BYTES = 16
_KINDS = ("gone", "changed", "new")
_TABLES = """
CREATE TABLE before (key BLOB, nth INTEGER, digest BLOB, place INTEGER, position INTEGER, PRIMARY KEY (key, nth))
    WITHOUT ROWID;
CREATE TABLE after (key BLOB, nth INTEGER, digest BLOB, place INTEGER, position INTEGER, PRIMARY KEY (key, nth))
    WITHOUT ROWID;
CREATE TABLE touched (key BLOB PRIMARY KEY, was_before INTEGER, was_after INTEGER) WITHOUT ROWID;
CREATE TABLE differing (key BLOB PRIMARY KEY, nth INTEGER, kind TEXT) WITHOUT ROWID;
"""
# The keys of new records, and whether each topic had rows of them before these records.
_TOUCH = """
INSERT OR IGNORE INTO touched
    SELECT ?1, EXISTS (SELECT 1 FROM before WHERE key = ?1), EXISTS (SELECT 1 FROM after WHERE key = ?1)
"""
_ADDED_KEYS = """
SELECT coalesce(sum(EXISTS (SELECT 1 FROM before WHERE key = touched.key) - was_before), 0),
    coalesce(sum(EXISTS (SELECT 1 FROM after WHERE key = touched.key) - was_after), 0) FROM touched
"""
# CROSS JOIN makes SQLite look up the few keys in the large table, and not the other way round.
_FIRST_DIFFERENCE = """
INSERT INTO differing
    SELECT key, min(nth),
        CASE WHEN NOT EXISTS (SELECT 1 FROM after WHERE key = differences.key) THEN 'gone'
            WHEN NOT EXISTS (SELECT 1 FROM before WHERE key = differences.key) THEN 'new' ELSE 'changed' END
    FROM (
        SELECT after.key AS key, after.nth AS nth
            FROM touched CROSS JOIN after USING (key)
            LEFT JOIN before ON before.key = after.key AND before.nth = after.nth
            WHERE before.digest IS NOT after.digest
        UNION ALL
        SELECT before.key, before.nth
            FROM touched CROSS JOIN before USING (key)
            LEFT JOIN after ON after.key = before.key AND after.nth = before.nth
            WHERE after.key IS NULL
    ) AS differences GROUP BY key
"""
_REPUBLISHED = """
SELECT after.place, after.position, after.nth FROM differing CROSS JOIN after USING (key)
    WHERE differing.kind <> 'gone'
        AND after.nth >= min(differing.nth, (SELECT max(nth) FROM after AS a WHERE a.key = differing.key))
"""


@dataclass(frozen=True, slots=True)
class DifferenceCounts:
    """Numbers of keys, and of rows."""

    before: int
    after: int
    gone: int
    changed: int
    new: int
    rows_before: int = 0
    rows_after: int = 0
    """If a row replaces the earlier rows of its key, only the last one counts."""

    @property
    def is_empty(self) -> bool:
        return not (self.gone or self.changed or self.new)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A key that differs, with its last row in both topics; None if it has no row."""

    kind: str
    """``gone``, ``changed`` or ``new``."""
    key: str
    before: str | None
    after: str | None


@dataclass(slots=True)
class _Side:
    table: str
    topic: str
    passed: dict[int, int]


class Difference:
    """Use it as a context manager: it owns a temporary file. It is not thread-safe."""

    def __init__(self, cluster: Cluster, stable: str, topic: str, *, only_last: bool, path: Path) -> None:
        self._cluster = cluster
        self._only_last = only_last
        self._path = path
        self._before = _Side("before", stable, {})
        self._after = _Side("after", topic, {})
        self._keys_before = self._keys_after = 0
        path.unlink(missing_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _TABLES)

    def __enter__(self) -> Difference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()
        self._path.unlink(missing_ok=True)

    def advance(self) -> DifferenceCounts:
        """Read both topics up to their ends, and compare the keys of the records that are new."""
        for side in (self._before, self._after):
            self._read(side)
        with self._transaction():
            added_before, added_after = self._database.execute(_ADDED_KEYS).fetchone()
            self._keys_before += added_before
            self._keys_after += added_after
            self._database.execute("DELETE FROM differing WHERE key IN (SELECT key FROM touched)")
            self._database.execute(_FIRST_DIFFERENCE)
            self._database.execute("DELETE FROM touched")
        kinds = dict(self._database.execute("SELECT kind, count(*) FROM differing GROUP BY kind"))
        return DifferenceCounts(
            before=self._keys_before,
            after=self._keys_after,
            **{kind: int(kinds.get(kind, 0)) for kind in _KINDS},
            rows_before=self._count("SELECT 1 FROM before"),
            rows_after=self._count("SELECT 1 FROM after"),
        )

    def _read(self, side: _Side) -> None:
        starts, ends = self._cluster.starts(side.topic), self._cluster.ends(side.topic)
        ranges = {
            number: (max(side.passed.get(number, 0), starts.get(number, 0)), end)
            for number, end in ends.items()
        }
        with self._transaction():
            for message in read(self._cluster, side.topic, ranges):
                self._add(side.table, message)
        side.passed = ends

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _add(self, table: str, message: Message) -> None:
        key, value = _bytes(message.key()), message.value()
        self._database.execute(_TOUCH, (key,))
        nth = 0 if self._only_last or value is None else self._number(table, key, message)
        self._database.execute(f"DELETE FROM {table} WHERE key = ? AND nth >= ?", (key, nth))  # noqa: S608
        if value is None:
            return
        digest = hashlib.blake2b(_bytes(value), digest_size=_DIGEST_BYTES).digest()
        self._database.execute(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)",  # noqa: S608
            (key, nth, digest, message.partition(), message.offset()),
        )

    def _number(self, table: str, key: bytes, message: Message) -> int:
        """Return the number of the row among the rows of its key."""
        row = dict(message.headers() or []).get(ROW_HEADER)
        if row is not None:
            return int(row)
        (last,) = self._database.execute(
            f"SELECT coalesce(max(nth), -1) FROM {table} WHERE key = ?",  # noqa: S608
            (key,),
        ).fetchone()
        return int(last) + 1

    # The records to publish

    def changes(self, header: bytes) -> Iterator[OutgoingRecord]:
        """Yield the records that make the stable topic equal to the other one. Call ``advance`` first."""
        headers = ((SWITCH_HEADER, header),)
        stable = self._before.topic
        for (key,) in self._database.execute("SELECT key FROM differing WHERE kind = 'gone'"):
            yield OutgoingRecord(stable, key, None, headers)
        for message, nth in self._records(self._after.topic, _REPUBLISHED):
            row = () if self._only_last else ((ROW_HEADER, b"%d" % nth),)
            yield OutgoingRecord(stable, _bytes(message.key()), _bytes(message.value()), (*headers, *row))

    def stable_rows(self, topic: str) -> Iterator[OutgoingRecord]:
        """Yield the rows of the stable topic, as records for another topic."""
        for message, _ in self._records(self._before.topic, "SELECT place, position, nth FROM before"):
            yield OutgoingRecord(topic, _bytes(message.key()), _bytes(message.value()))

    @property
    def stable_count(self) -> int:
        """The number of records of ``stable_rows``."""
        return self._count("SELECT 1 FROM before")

    @property
    def change_count(self) -> int:
        """The number of records of ``changes``."""
        return self._count("SELECT 1 FROM differing WHERE kind = 'gone'") + self._count(_REPUBLISHED)

    def _count(self, sql: str) -> int:
        (number,) = self._database.execute(f"SELECT count(*) FROM ({sql})").fetchone()  # noqa: S608
        return int(number)

    def _records(self, topic: str, sql: str) -> Iterator[tuple[Message, int]]:
        """Yield the records at the places that the statement returns, in the order of each partition, with the numbers
        of their rows.
        """
        self._database.execute("DROP TABLE IF EXISTS temp.places")
        self._database.execute(
            f"CREATE TEMP TABLE places AS SELECT place, position, nth FROM ({sql}) ORDER BY place, position"  # noqa: S608
        )
        bounds = "SELECT place, min(position), max(position) + 1 FROM places GROUP BY place"
        for number, start, end in self._database.execute(bounds).fetchall():
            wanted = self._database.execute(
                "SELECT position, nth FROM places WHERE place = ? ORDER BY position", (number,)
            )
            offset, nth = wanted.fetchone()
            for message in read(self._cluster, topic, {number: (start, end)}):
                if message.offset() == offset:
                    yield message, nth
                    offset, nth = wanted.fetchone() or (end, 0)
            if offset < end:
                raise LogError(
                    f"record {offset} of {topic}/{number} was deleted after it was compared",
                    name="RECORD_DELETED",
                    hint="no action is needed: the topics are compared again before the next attempt to switch",
                    retriable=True,
                )

    # Samples

    def samples(self) -> list[SampleRow]:
        """Return a few differing keys of each kind, with their last rows. Call ``advance`` first."""
        rows = []
        for kind in _KINDS:
            keys = self._database.execute(
                "SELECT key FROM differing WHERE kind = ? LIMIT ?", (kind, _SAMPLES)
            ).fetchall()
            rows += [
                SampleRow(kind, _text(key), self._last(self._before, key), self._last(self._after, key))
                for (key,) in keys
            ]
        return rows

    def _last(self, side: _Side, key: bytes) -> str | None:
        last = self._database.execute(
            f"SELECT place, position FROM {side.table} WHERE key = ? ORDER BY nth DESC LIMIT 1",  # noqa: S608
            (key,),
        ).fetchone()
        if last is None:
            return None
        number, offset = last
        message = next(read(self._cluster, side.topic, {number: (offset, offset + 1)}), None)
        return None if message is None else _text(_bytes(message.value()))


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _text(value: bytes) -> str:
    text = value.decode(errors="replace")
    return text if len(text) <= _SAMPLE_CHARS else f"{text[:_SAMPLE_CHARS]}…"
