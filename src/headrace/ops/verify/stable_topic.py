"""Verifies the stable topic of a flow: its readers must see the rows of the generation that serves.

A generation after the first writes a topic of its own, which ``flow_topic`` compares with the derived rows. Other apps
and stock Kafka clients read the flow's stable topic instead. A switch writes the difference between the two to it, and
from then on each batch writes its rows to both (decision 0022). So this module compares the stable topic with the
generation's own topic, without code of the switch. Both are read up to one position: their ends if no batch is under
way, else the end of a batch, whose progress record has the offsets in both topics.

- If newer rows of a key replace older rows, the last row of each key must be the same, and a key without a row must
  have none. So a missing tombstone is found as an extra row.
- Otherwise each row counts (``follows_switch``): the switch publishes the rows of a key from the first difference on,
  at least the last one; later rows follow. If records were removed, only the last row of each key is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from confluent_kafka import Message

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.generations import TOPIC as GENERATIONS
from headrace.client.generations import generations_of
from headrace.client.progress import Progress, current, wait_until_decided
from headrace.client.records import read
from headrace.model.declarations import Flow
from headrace.model.generations import FlowGenerations
from headrace.ops.verify.report import Difference, Finding, Report, Unprovable

__all__ = ["StableTopic", "follows_switch"]

_SWITCH_HEADER = "headrace.switch"
_DIGEST_BYTES = 16
_WAIT_S = 30.0
_PAUSE_S = 0.05
_TABLE = """
CREATE TABLE {side} (key BLOB, nth INTEGER, digest BLOB, switch INTEGER, part INTEGER, place INTEGER, at_ms INTEGER,
    PRIMARY KEY (key, nth)) WITHOUT ROWID
"""
# After partitions were added, a key can have rows in two partitions. The log's time shows which one is newer.
_PUT_LAST = """
INSERT INTO {side} VALUES (?1, 0, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (key, nth) DO UPDATE
    SET digest = ?2, switch = ?3, part = ?4, place = ?5, at_ms = ?6 WHERE part = ?4 OR at_ms <= ?6
"""
_PUT_NEXT = """
INSERT INTO {side} VALUES (?1, (SELECT coalesce(max(nth) + 1, 0) FROM {side} WHERE key = ?1), ?2, ?3, ?4, ?5, ?6)
"""
_DIFFERING = """
SELECT key FROM own LEFT JOIN stable USING (key, nth) WHERE stable.digest IS NOT own.digest
UNION
SELECT key FROM stable LEFT JOIN own USING (key, nth) WHERE own.key IS NULL AND stable.digest IS NOT NULL
ORDER BY key
"""
_Side = Literal["own", "stable"]
_Kind = Literal["missing", "extra", "different"]
_Ends = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Position:
    """Offsets up to which both topics have the same batches."""

    own: _Ends
    stable: _Ends


@dataclass(frozen=True, slots=True)
class _Row:
    digest: bytes
    switch: int | None
    """If a switch published the row, the offset of its first row in the partition."""
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class _KeyDifference:
    kind: _Kind
    key: bytes
    expected: _Row | None
    found: _Row | None


def follows_switch(own: Sequence[bytes], found: Sequence[tuple[bytes, int | None]]) -> bool:
    """Whether the rows of a key in the stable topic follow from the rows of the generation that serves.

    ``own`` are the generation's rows, and ``found`` the rows of the stable topic, each with a number of the switch that
    published it, or None.
    """
    digests = [digest for digest, _ in found]
    if digests == [*own]:
        return True
    published = [index for index, (_, switch) in enumerate(found) if switch is not None]
    if not published:
        return False
    end = published[-1] + 1
    begin = end - 1
    while begin > 0 and found[begin - 1][1] == found[begin][1]:
        begin -= 1
    at_switch = len(own) - (len(found) - end)
    unpublished = at_switch - (end - begin)
    if unpublished < 0 or [*own[unpublished:]] != digests[begin:]:
        return False
    pairs = enumerate(zip(digests[:begin], own[:at_switch], strict=False))
    same = next((index for index, (left, right) in pairs if left != right), min(begin, at_switch))
    return unpublished == min(same, at_switch - 1)


class StableTopic:
    """Adds the result to the report of the flow. ``folder`` is temporary, for one check."""

    def __init__(
        self, cluster: Cluster, flow: Flow, folder: Path, sample: int, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._flow = flow
        self._path = folder / "stable-topic.db"
        self._sample = sample
        self._say = say

    def check(self, report: Report) -> None:
        if self._cluster.topic(GENERATIONS) is not None:
            # The log confirms a commit a moment before readers can see it.
            wait_until_decided(self._cluster, GENERATIONS)
        generations = generations_of(self._cluster, self._flow)
        if generations is None or generations.serving_entry.topic == generations.stable:
            return  # The generation writes its rows only to the stable topic.
        progress = current(self._cluster, generations.serving_entry.progress)
        if progress is None:
            return
        if progress.generation.latency == "realtime":
            report.notes.append(
                f"readers of {generations.stable} see rows of an earlier generation, because the flow is a real-time"
                f" flow and generation {generations.serving} writes only {generations.serving_entry.topic}"
            )
            return
        position = self._find_position(generations, progress) if generations.is_published else None
        if position is None:
            why = f"the difference to generation {generations.serving}, which serves, is not published yet"
            if generations.is_published:
                why = f"generation {generations.serving} committed no batch in both topics within {_WAIT_S:.0f} s"
            self._add_unprovable(report, generations.stable, self._cluster.ends(generations.stable), why)
            return
        self._say(f"flow {self._flow.name}: comparing its stable topic {generations.stable}")
        replaces = bool(progress.generation.updates) or self._flow.writes.kind == "table"
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            comparison = _Comparison(self._cluster, database, generations, position, replaces=replaces)
            self._add(report, comparison)

    def _find_position(self, generations: FlowGenerations, began: Progress) -> _Position | None:
        """Return the ends of both topics at a moment without an open transaction, or the end of a batch that was
        committed since ``began``: after the last switch. None after the time limit.
        """
        own, stable = generations.serving_entry.topic, generations.stable
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            progress = current(self._cluster, generations.serving_entry.progress)
            ends = _Position(self._cluster.ends(own), self._cluster.ends(stable))
            written = _Position(
                self._cluster.ends(own, committed=False), self._cluster.ends(stable, committed=False)
            )
            if ends == written and self._is_unchanged(generations, progress):
                return ends
            if (
                progress is not None
                and progress.last is not None
                and progress.last_offset != began.last_offset
            ):
                outputs = progress.last.outputs
                if own in outputs and stable in outputs:
                    return _Position(_ends_of(outputs[own]), _ends_of(outputs[stable]))
            time.sleep(_PAUSE_S)
        return None

    def _is_unchanged(self, generations: FlowGenerations, progress: Progress | None) -> bool:
        now = generations_of(self._cluster, self._flow)
        return (
            now is not None
            and (now.serving, now.switches) == (generations.serving, generations.switches)
            and progress == current(self._cluster, generations.serving_entry.progress)
        )

    def _add(self, report: Report, comparison: _Comparison) -> None:
        comparison.fill()
        for why, starts in comparison.deleted():
            self._add_unprovable(report, comparison.stable, starts, why)
        counts = Counter[str]()
        for difference in comparison.differences():
            counts[difference.kind] += 1
            if counts.total() <= self._sample:
                report.differences = [*report.differences, comparison.describe(difference)]
        report.missing += counts["missing"]
        report.extra += counts["extra"]
        report.different += counts["different"]
        report.unprovable_rows += comparison.unknown
        if not counts:
            report.notes.append(
                f"{comparison.stable}, the flow's stable topic, has the rows of generation {comparison.serving}:"
                f" {comparison.keys():,} keys"
            )
            return
        report.findings.append(
            Finding(
                "topic",
                f"{comparison.stable}, the flow's stable topic, does not have the rows of generation"
                f" {comparison.serving}, which serves: {counts.total()} keys differ",
                "its readers see wrong rows; a rebuild publishes the difference:"
                f" headrace flow rebuild {app_argument()} {self._flow.name}",
            )
        )

    @staticmethod
    def _add_unprovable(report: Report, topic: str, before: _Ends, why: str) -> None:
        report.unprovable += [
            Unprovable(topic, number, offset, why) for number, offset in sorted(before.items()) if offset
        ]


class _Comparison:
    def __init__(
        self,
        cluster: Cluster,
        database: sqlite3.Connection,
        generations: FlowGenerations,
        position: _Position,
        *,
        replaces: bool,
    ) -> None:
        """``replaces`` says whether newer rows of a key replace older rows."""
        self.stable = generations.stable
        self.serving = generations.serving
        self.unknown = 0
        """The number of keys whose rows cannot be compared."""
        self._cluster = cluster
        self._database = database
        self._topics: dict[_Side, str] = {
            "own": generations.serving_entry.topic,
            "stable": generations.stable,
        }
        self._ends: dict[_Side, _Ends] = {"own": position.own, "stable": position.stable}
        self._starts = {side: cluster.starts(topic) for side, topic in self._topics.items()}
        self._is_compacted = {
            side: "compact" in (cluster.configs(topic).get("cleanup.policy") or "")
            for side, topic in self._topics.items()
        }
        self._is_truncated = {side: any(starts.values()) for side, starts in self._starts.items()}
        is_whole = not any(self._is_compacted.values()) and not any(self._is_truncated.values())
        self._only_last = replaces or not is_whole
        self._put = _PUT_LAST if self._only_last else _PUT_NEXT
        self._switches = _Switches()

    def deleted(self) -> Iterator[tuple[str, _Ends]]:
        """Yield why some rows of the stable topic cannot be compared, and the offsets before which they are."""
        for side, topic in self._topics.items():
            if self._is_truncated[side]:
                yield (
                    f"the first records of {topic} were deleted",
                    self._starts[side] if side == "stable" else self._ends["stable"],
                )

    def fill(self) -> None:
        for side in self._topics:
            self._database.execute(_TABLE.format(side=side))
            self._database.execute("BEGIN")
            for message in self._read(side):
                self._add(side, message)
            self._database.execute("COMMIT")

    def _read(self, side: _Side) -> Iterator[Message]:
        starts = self._starts[side]
        ranges = {number: (starts.get(number, 0), end) for number, end in self._ends[side].items()}
        return read(self._cluster, self._topics[side], ranges)

    def _add(self, side: _Side, message: Message) -> None:
        key, value = _bytes(message.key()), message.value()
        if value is None and not self._only_last:
            self._switches.find(message)
            self._database.execute(f"DELETE FROM {side} WHERE key = ?", (key,))  # noqa: S608
            return
        digest = None if value is None else hashlib.blake2b(_bytes(value), digest_size=_DIGEST_BYTES).digest()
        switch = self._switches.find(message) if side == "stable" else None
        at_ms = message.timestamp()[1]
        values = (key, digest, switch, message.partition(), message.offset(), at_ms)
        self._database.execute(self._put.format(side=side), values)

    def keys(self) -> int:
        counted = self._database.execute("SELECT count(DISTINCT key) FROM stable WHERE digest IS NOT NULL")
        return int(counted.fetchone()[0])

    def differences(self) -> Iterator[_KeyDifference]:
        replaced = {side: self._replaced_keys(side) for side in self._topics}
        for (key,) in self._database.execute(_DIFFERING).fetchall():
            own, found = self._rows("own", key), self._rows("stable", key)
            if self._only_last:
                difference = _last_difference(key, own, found)
                is_unknown = (
                    key in replaced["own"]
                    or key in replaced["stable"]
                    or (difference.found is None and self._is_truncated["stable"])
                    or (difference.expected is None and self._is_truncated["own"])
                )
            else:
                if follows_switch([row.digest for row in own], [(row.digest, row.switch) for row in found]):
                    continue
                difference = _sequence_difference(key, own, found)
                is_unknown = any(len({row.partition for row in rows}) > 1 for rows in (own, found))
            if is_unknown:
                self.unknown += 1
                continue
            yield difference

    def _replaced_keys(self, side: _Side) -> set[bytes]:
        """Return the keys with later records, if compaction can have removed their records before the position."""
        if not self._is_compacted[side]:
            return set()
        ends = self._cluster.ends(self._topics[side])
        ranges = {number: (self._ends[side].get(number, 0), end) for number, end in ends.items()}
        return {_bytes(message.key()) for message in read(self._cluster, self._topics[side], ranges)}

    def _rows(self, side: _Side, key: bytes) -> list[_Row]:
        query = f"SELECT digest, switch, part, place FROM {side} WHERE key = ? ORDER BY nth"  # noqa: S608
        rows = self._database.execute(query, (key,)).fetchall()
        return [_Row(*row) for row in rows if row[0] is not None]

    def describe(self, difference: _KeyDifference) -> Difference:
        key = {"key": difference.key.decode(errors="replace")}
        expected, found = self._value("own", difference.expected), self._value("stable", difference.found)
        columns = ["value"] if difference.kind == "different" else []
        return Difference(difference.kind, key, expected, found, columns, self.stable)

    def _value(self, side: _Side, row: _Row | None) -> dict[str, str] | None:
        if row is None:
            return None
        ranges = {row.partition: (row.offset, row.offset + 1)}
        message = next(read(self._cluster, self._topics[side], ranges), None)
        return {"value": "" if message is None else _bytes(message.value()).decode(errors="replace")}


class _Switches:
    """Finds which switch published a record. A switch publishes in one transaction, so its records in a partition have
    successive offsets, and a transaction marker follows them.
    """

    def __init__(self) -> None:
        self._last: dict[int | None, tuple[int, int]] = {}
        """By partition, the first and the next offset of the last switch."""

    def find(self, message: Message) -> int | None:
        """Return the offset of the switch's first record in the partition; None if no switch published the record."""
        number, offset = message.partition(), message.offset() or 0
        if _SWITCH_HEADER not in dict(message.headers() or ()):
            return None
        first, next_offset = self._last.get(number, (offset, offset))
        if offset != next_offset:
            first = offset
        self._last[number] = first, offset + 1
        return first


def _last_difference(key: bytes, own: Sequence[_Row], found: Sequence[_Row]) -> _KeyDifference:
    expected, last = own[-1] if own else None, found[-1] if found else None
    kind: _Kind = "missing" if last is None else "extra" if expected is None else "different"
    return _KeyDifference(kind, key, expected, last)


def _sequence_difference(key: bytes, own: Sequence[_Row], found: Sequence[_Row]) -> _KeyDifference:
    """Return the first row that the stable topic lacks, or the last row that it should not have."""
    if not own or not found:
        return _last_difference(key, own, found)
    lacking = Counter(row.digest for row in own) - Counter(row.digest for row in found)
    missing = next((row for row in own if row.digest in lacking), None)
    derived = {row.digest for row in own}
    first_published = next((index for index, row in enumerate(found) if row.switch is not None), 0)
    extra = next((row for row in reversed(found[first_published:]) if row.digest not in derived), None)
    if missing is not None and extra is not None:
        return _KeyDifference("different", key, missing, extra)
    if missing is not None:
        return _KeyDifference("missing", key, missing, None)
    if extra is not None:
        return _KeyDifference("extra", key, None, extra)
    # All rows are right, but they are repeated or in another order.
    return _KeyDifference("different", key, own[-1], found[-1])


def _ends_of(ranges: Mapping[str, tuple[int, int]]) -> dict[int, int]:
    return {int(number): end for number, (_, end) in ranges.items()}


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
