"""The difference between two topics with the rows of one flow: the stable topic, and the topic of a generation.

Both topics are read into a SQLite file: per row its key, its number among the rows of the key, a digest of its value
and its offset. If a row replaces the earlier rows of its key (``only_last``), only the last one counts; else every row
does. ``advance`` reads on from where it stopped, so the second comparison reads only what is new.

Readers of the stable topic shall see the rows of the generation. From the first difference of a key on, all rows of the
key are published again, and at least its last one. A key without rows gets a tombstone.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.client.transactional_writer import OutgoingRecord

__all__ = ["SWITCH_HEADER", "Difference", "DifferenceCounts", "SampleRow"]

SWITCH_HEADER = "headrace.switch"
"""The header of every record that a switch publishes. Its value is, for example, ``1>2``."""
_SAMPLES = 5
_SAMPLE_CHARS = 300
_DIGEST_BYTES = 16
_ROWS_PER_WRITE = 10_000
_KINDS = ("gone", "changed", "new")
_TABLES = """
CREATE TABLE before (key BLOB, nth INTEGER, digest BLOB, place INTEGER, position INTEGER, PRIMARY KEY (key, nth))
    WITHOUT ROWID;
CREATE TABLE after (key BLOB, nth INTEGER, digest BLOB, place INTEGER, position INTEGER, PRIMARY KEY (key, nth))
    WITHOUT ROWID;
"""
_FIRST_DIFFERENCE = """
CREATE TEMP TABLE differing AS
    SELECT key, min(nth) AS nth, max(is_new) AS is_new FROM (
        SELECT after.key AS key, after.nth AS nth, before.key IS NULL AND after.nth = 0 AS is_new
            FROM after LEFT JOIN before USING (key, nth) WHERE before.digest IS NOT after.digest
        UNION ALL
        SELECT before.key, before.nth, 0
            FROM before LEFT JOIN after USING (key, nth) WHERE after.key IS NULL
    ) GROUP BY key
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

    def advance(self, extend: Callable[[], None] = lambda: None) -> DifferenceCounts:
        """Read both topics up to their ends, and compare them. ``extend`` is called regularly."""
        for side in (self._before, self._after):
            self._read(side, extend)
        database = self._database
        database.execute("DROP TABLE IF EXISTS temp.differing")
        database.execute(_FIRST_DIFFERENCE)
        database.execute("CREATE INDEX temp.differing_keys ON differing (key)")
        count = "SELECT count(DISTINCT key) FROM"
        gone = self._one(f"{count} differing WHERE key NOT IN (SELECT key FROM after)")  # noqa: S608
        new = self._one(f"{count} differing WHERE is_new")
        differing = self._one(f"{count} differing")
        return DifferenceCounts(
            before=self._one(f"{count} before"),
            after=self._one(f"{count} after"),
            gone=gone,
            changed=differing - gone - new,
            new=new,
            rows_before=self._one("SELECT count(*) FROM before"),
            rows_after=self._one("SELECT count(*) FROM after"),
        )

    def _one(self, sql: str) -> int:
        (number,) = self._database.execute(sql).fetchone()
        return int(number)

    def _read(self, side: _Side, extend: Callable[[], None]) -> None:
        starts, ends = self._cluster.starts(side.topic), self._cluster.ends(side.topic)
        ranges = {
            number: (max(side.passed.get(number, 0), starts.get(number, 0)), end)
            for number, end in ends.items()
        }
        with self._transaction():
            for count, message in enumerate(read(self._cluster, side.topic, ranges)):
                self._add(side.table, message)
                if count % _ROWS_PER_WRITE == _ROWS_PER_WRITE - 1:
                    extend()
        side.passed = ends

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN")
        yield
        self._database.execute("COMMIT")

    def _add(self, table: str, message: Message) -> None:
        key, value = _bytes(message.key()), message.value()
        if value is None:
            self._database.execute(f"DELETE FROM {table} WHERE key = ?", (key,))  # noqa: S608
            return
        digest = hashlib.blake2b(_bytes(value), digest_size=_DIGEST_BYTES).digest()
        nth = "0" if self._only_last else f"(SELECT coalesce(max(nth) + 1, 0) FROM {table} WHERE key = ?1)"  # noqa: S608
        self._database.execute(
            f"INSERT OR REPLACE INTO {table} VALUES (?1, {nth}, ?2, ?3, ?4)",  # noqa: S608
            (key, digest, message.partition(), message.offset()),
        )

    # The records to publish

    def changes(self, header: bytes) -> Iterator[OutgoingRecord]:
        """Yield the records that make the stable topic equal to the other one. Call ``advance`` first."""
        headers = ((SWITCH_HEADER, header),)
        stable = self._before.topic
        gone = "SELECT key FROM differing WHERE key NOT IN (SELECT key FROM after)"
        for (key,) in self._database.execute(gone):
            yield OutgoingRecord(stable, key, None, headers)
        sql = (
            "SELECT after.place, after.position FROM after JOIN differing USING (key)"
            " WHERE after.nth >= min(differing.nth, (SELECT max(nth) FROM after AS a WHERE a.key = differing.key))"
        )
        for message in self._records(self._after.topic, sql):
            yield OutgoingRecord(stable, _bytes(message.key()), _bytes(message.value()), headers)

    def stable_rows(self, topic: str) -> Iterator[OutgoingRecord]:
        """Yield the rows of the stable topic, as records for another topic."""
        for message in self._records(self._before.topic, "SELECT place, position FROM before"):
            yield OutgoingRecord(topic, _bytes(message.key()), _bytes(message.value()))

    def _records(self, topic: str, sql: str) -> Iterator[Message]:
        """Yield the records at the places that the statement returns, in the order of each partition."""
        self._database.execute("DROP TABLE IF EXISTS temp.places")
        self._database.execute(
            f"CREATE TEMP TABLE places AS SELECT place, position FROM ({sql}) ORDER BY place, position"  # noqa: S608
        )
        bounds = "SELECT place, min(position), max(position) + 1 FROM places GROUP BY place"
        for number, start, end in self._database.execute(bounds).fetchall():
            wanted = self._database.execute(
                "SELECT position FROM places WHERE place = ? ORDER BY position", (number,)
            )
            (next_wanted,) = wanted.fetchone()
            for message in read(self._cluster, topic, {number: (start, end)}):
                if message.offset() == next_wanted:
                    yield message
                    next_wanted = next((offset for (offset,) in wanted), None)

    # Samples

    def samples(self) -> list[SampleRow]:
        """Return a few differing keys of each kind, with their last rows. Call ``advance`` first."""
        conditions = {
            "gone": "key NOT IN (SELECT key FROM after)",
            "changed": "NOT is_new AND key IN (SELECT key FROM after)",
            "new": "is_new",
        }
        rows = []
        for kind in _KINDS:
            keys = self._database.execute(
                f"SELECT key FROM differing WHERE {conditions[kind]} LIMIT {_SAMPLES}"  # noqa: S608
            ).fetchall()
            rows += [
                SampleRow(kind, _text(key), self._last(self._before, key), self._last(self._after, key))
                for (key,) in keys
            ]
        return rows

    def _last(self, side: _Side, key: bytes) -> str | None:
        place = self._database.execute(
            f"SELECT place, position FROM {side.table} WHERE key = ? ORDER BY nth DESC LIMIT 1",  # noqa: S608
            (key,),
        ).fetchone()
        if place is None:
            return None
        number, offset = place
        message = next(read(self._cluster, side.topic, {number: (offset, offset + 1)}), None)
        return None if message is None else _text(_bytes(message.value()))


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _text(value: bytes) -> str:
    text = value.decode(errors="replace")
    return text if len(text) <= _SAMPLE_CHARS else f"{text[:_SAMPLE_CHARS]}…"
