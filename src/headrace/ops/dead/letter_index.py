"""An index of the letters of an app, in SQLite: its dead-letter topics, and the states of the letters.

A *letter* is one rejected record, however many flows and views rejected it, and however often. Each rejection is a
*refusal*: one record of a dead-letter topic. All refusals of a letter have the same id.

A letter without a recorded state is settled if all of its refusals are settled, and open otherwise. A refusal is
settled if another generation of the flow serves now, or another build of the view, and has handled the record
(``letter_states``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from confluent_kafka import Message

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress import Progress
from headrace.client.topic_index import IndexLayout, IndexRow, IndexTable, TopicBounds, TopicIndex
from headrace.model.rejection import BuildRecord, LetterState, Reason
from headrace.ops.dead.dead_topic import dead_topics
from headrace.ops.dead.letter import Letter, RecordId, build_record_of
from headrace.ops.dead.letter_states import (
    HandledRange,
    ServingGeneration,
    StateRecord,
    handled_ranges,
    parse_state_record,
    read_progress,
    states_topic,
)
from headrace.ops.lag.log_snapshot import LogSnapshot, take_snapshot

__all__ = ["IndexedLetter", "LetterIndex", "LetterInfo", "LetterLocation", "Refusal", "index_path"]

T = TypeVar("T")

_SETTLED = """
EXISTS (SELECT 1 FROM handled h WHERE h.topic = r.topic AND h.source = r.source AND (h.partition = -1 OR (
    h.partition = r.source_partition AND r.source_id IN ('', h.source_id)
    AND r.source_offset >= h.start AND r.source_offset < h.past)))
"""
_AWAITED = """
EXISTS (SELECT 1 FROM handled h WHERE h.topic = r.topic AND h.source = r.source AND h.partition = r.source_partition
    AND r.source_id IN ('', h.source_id) AND r.source_offset >= h.start AND r.source_offset >= h.past)
"""
_LAYOUT = IndexLayout(
    version=1,
    create="""
CREATE TABLE refusals (topic TEXT, partition INTEGER, offset INTEGER, id BLOB NOT NULL, at_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL, reason TEXT NOT NULL, generation INTEGER, source TEXT, source_id TEXT,
    source_partition INTEGER, source_offset INTEGER, PRIMARY KEY (topic, partition, offset)) WITHOUT ROWID;
CREATE INDEX refusals_by_letter ON refusals (id);
CREATE INDEX refusals_by_time ON refusals (topic, at_ms, partition, offset);
CREATE TABLE builds (topic TEXT, partition INTEGER, offset INTEGER, serves INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (topic, partition, offset)) WITHOUT ROWID;
CREATE TABLE states (id BLOB PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    state TEXT NOT NULL, record BLOB NOT NULL) WITHOUT ROWID;
""",
    tables={
        "refusals": IndexTable(
            "REPLACE INTO refusals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", has_location=True
        ),
        "builds": IndexTable("REPLACE INTO builds VALUES (?, ?, ?, ?, ?)", has_location=True),
        "states": IndexTable(
            """
INSERT INTO states VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
SET offset = excluded.offset, state = excluded.state, record = excluded.record WHERE excluded.offset > states.offset
""",
            has_location=True,
        ),
    },
    temporary=f"""
CREATE TEMP TABLE serving (topic TEXT PRIMARY KEY, generation INTEGER, since_ms INTEGER, since_offset INTEGER);
CREATE TEMP TABLE handled (topic TEXT, source TEXT, source_id TEXT, partition INTEGER, start INTEGER, past INTEGER,
    PRIMARY KEY (topic, source, partition, source_id)) WITHOUT ROWID;
CREATE TEMP VIEW judged AS SELECT r.*,
    is_past AND (r.source IS NULL OR {_SETTLED}) AS is_settled,
    is_past AND {_AWAITED} AS is_awaited
FROM (SELECT f.*, s.topic IS NOT NULL AND iif(s.generation IS NULL, f.offset < s.since_offset,
    s.generation IS NOT coalesce(f.generation, iif(f.at_ms >= s.since_ms, s.generation, NULL))) AS is_past
    FROM refusals f LEFT JOIN serving s ON s.topic = f.topic) r;
""",  # noqa: S608 - constants of this module
)
_STATE = """
coalesce((SELECT state FROM states WHERE id = r.id),
    (SELECT iif(min(j.is_settled), 'settled', 'open') FROM judged j WHERE j.id = r.id))
"""
_SERVING_BUILDS = """
SELECT topic, max(offset), record FROM builds b WHERE NOT serves
AND offset < (SELECT max(offset) FROM builds WHERE topic = b.topic AND serves) GROUP BY topic
"""
_COUNTS = """
WITH letter AS MATERIALIZED (SELECT id, min(is_settled) AS is_settled FROM judged GROUP BY id)
SELECT d.topic, coalesce(s.state, iif(l.is_settled, 'settled', 'open')) AS state, count(*)
FROM (SELECT DISTINCT topic, id FROM refusals) d JOIN letter l ON l.id = d.id LEFT JOIN states s ON s.id = d.id
GROUP BY d.topic, 2
"""
_OPEN_COUNTS = """
SELECT topic, reason, count(DISTINCT id) FROM judged
WHERE NOT is_settled AND id NOT IN (SELECT id FROM states) GROUP BY topic, reason
"""
_FIRST_OF_LETTER = """
NOT EXISTS (SELECT 1 FROM refusals n WHERE n.id = r.id AND n.topic = r.topic
    AND (n.partition, n.offset) < (r.partition, r.offset))
"""
_NEWEST_OF_LETTER = """
NOT EXISTS (SELECT 1 FROM refusals n WHERE n.id = r.id AND n.topic = r.topic
    AND (n.at_ms, n.partition, n.offset) > (r.at_ms, r.partition, r.offset))
"""


class Refusal(msgspec.Struct, frozen=True):
    """A record of a dead-letter topic: one rejection of a letter."""

    record_id: RecordId
    at_ms: int
    reason: Reason
    generation: int | None
    """The generation of the flow that rejected the record, or that wrote the view's topic; None if unknown."""
    is_settled: bool
    is_awaited: bool
    """Whether another generation serves now, but has not read the record yet."""


class LetterInfo(msgspec.Struct, frozen=True):
    state: LetterState
    record: StateRecord | None
    """The record that set the state; None if the letter is open or settled."""
    refusals: list[Refusal]
    """Oldest first."""


class IndexedLetter(msgspec.Struct, frozen=True):
    """The newest refusal of a letter in one dead-letter topic."""

    at_ms: int
    partition: int
    offset: int
    bytes: int


class LetterLocation(msgspec.Struct, frozen=True):
    partition: int
    offset: int
    id: bytes
    state: LetterState


@dataclass(frozen=True, slots=True)
class _Cached(Generic[T]):
    value: T
    read: tuple[Any, ...] | None = None
    """What the index had read. None if the value was never computed."""
    serving: Sequence[ServingGeneration] = ()
    ranges: Sequence[HandledRange] = ()
    is_awaited: bool = False
    """Whether a serving generation had not read the record of a refusal yet."""


def index_path(data: Path, app: str) -> Path:
    return data / "serve" / f"{app}-letters.db"


class LetterIndex:
    """Thread-safe. Several processes can share the file. Without a path, the index is in memory and starts empty."""

    def __init__(self, path: Path | None, cluster: Cluster, app: App) -> None:
        self.app = app
        self._cluster = cluster
        self.states_topic = states_topic(app.name)
        self._dead_topics = {topic.name: topic for topic in dead_topics(app)}
        names = [*self._dead_topics, self.states_topic]
        self._index = TopicIndex(cluster, names, path, _LAYOUT, self._row)
        self._lock = threading.Lock()
        self._counts: _Cached[dict[str, dict[LetterState, int]]] = _Cached({})
        self._open_counts: _Cached[dict[tuple[str, Reason], int]] = _Cached({})
        self._serving: list[ServingGeneration] = []
        self._ranges: list[HandledRange] = []
        self._builds: dict[str, tuple[int, BuildRecord]] = {}
        self._sources: dict[str, list[str]] = {}
        self._sources_read: tuple[Any, ...] | None = None

    @property
    def topics(self) -> set[str]:
        """The topics that the index reads."""
        return set(self._index.topics)

    def close(self) -> None:
        self._index.close()

    def ensure_states_topic(self) -> None:
        """Create the topic unless it exists. It retains the states forever: without its state, a letter could be
        written back twice.
        """
        configs = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
        self._cluster.ensure_topic(self.states_topic, 1, configs)

    # Updating

    def catch_up(
        self,
        log: LogSnapshot | None = None,
        progress: Mapping[str, Progress] | None = None,
        *,
        is_owner: bool = False,
        records_max: int | None = None,
    ) -> bool:
        """Read the topics to their ends, and then decide which letters are settled. Return whether all was read.

        ``log`` is a current snapshot of ``topics``, and ``progress`` the current progress of the flows; what is None is
        read from the log. ``is_owner`` means that no other process can write states now.
        """
        log = take_snapshot(self._cluster, self.topics) if log is None else log
        bounds = {name: _bounds(log, name) for name in self._index.topics}
        owned = [self.states_topic] if is_owner else []
        is_complete = self._index.catch_up(owned=owned, bounds=bounds, records_max=records_max)
        self.settle(read_progress(self._cluster, self.app) if progress is None else progress)
        return is_complete

    def settle(self, progress: Mapping[str, Progress]) -> None:
        """Update which generations serve, and what these have read."""
        with self._lock:
            self._update_sources()
            serving, ranges = handled_ranges(self.app, progress, self._builds, self._sources)
            if (serving, ranges) != (self._serving, self._ranges):
                self._index.replace_temporary(
                    {
                        "serving": [msgspec.structs.astuple(item) for item in serving],
                        "handled": [msgspec.structs.astuple(item) for item in ranges],
                    }
                )
                self._serving, self._ranges = serving, ranges

    def _update_sources(self) -> None:
        """Read which topics the letters come from, and the builds of the views, if the index has changed."""
        read = self._index.changes()
        if read == self._sources_read:
            return
        query = self._index.query
        self._builds = {
            topic: (offset, record)
            for topic, offset, encoded in query(_SERVING_BUILDS)
            if (record := BuildRecord.parse(encoded)) is not None
        }
        self._sources = {}
        for topic, source in query("SELECT DISTINCT topic, source FROM refusals WHERE source IS NOT NULL"):
            self._sources.setdefault(topic, []).append(source)
        self._sources_read = read

    def add_states(self, states: Iterable[tuple[bytes, int, StateRecord]], end: int) -> None:
        """Add states with their offsets. All states before offset ``end`` are then known."""
        rows = (self._state_row(key, offset, record) for key, offset, record in states)
        self._index.add(self.states_topic, rows, end)

    def _row(self, message: Message) -> IndexRow | None:
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        if topic == self.states_topic:
            record = parse_state_record(message.value() or b"")
            return None if record is None else self._state_row(message.key() or b"", offset, record)
        build = build_record_of(message)
        if build is not None:
            is_view = self._dead_topics[topic].kind == "view"
            row = (topic, partition, offset, build.serves, msgspec.json.encode(build))
            return ("builds", row) if is_view else None
        letter, source = Letter.of(message), None
        origin = letter.origin
        if origin is not None:
            source = origin.topic
        return "refusals", (
            *(topic, partition, offset, letter.id, letter.at_ms, letter.size_bytes, letter.reason.value),
            *(letter.generation, source, letter.topic_id),
            *((origin.partition, origin.offset) if origin is not None else (None, None)),
        )

    def _state_row(self, key: bytes, offset: int, record: StateRecord) -> IndexRow:
        return "states", (key, self.states_topic, 0, offset, record.state, msgspec.json.encode(record))

    # Queries

    def find(self, key: bytes) -> LetterInfo | None:
        """Return what is known about the letter with this id; None if the index does not have it."""
        rows = self._index.query(
            "SELECT topic, partition, offset, at_ms, reason, generation, is_settled, is_awaited FROM judged"
            " WHERE id = ? ORDER BY at_ms, topic, partition, offset",
            key,
        )
        refusals = [
            Refusal(RecordId(*row[:3]), row[3], Reason(row[4]), row[5], bool(row[6]), bool(row[7]))
            for row in rows
        ]
        encoded = self._index.query("SELECT record FROM states WHERE id = ?", key)
        record = parse_state_record(encoded[0][0]) if encoded else None
        if record is not None:
            return LetterInfo(LetterState(record.state), record, refusals)
        if not refusals:
            return None
        is_settled = all(refusal.is_settled for refusal in refusals)
        return LetterInfo(LetterState.SETTLED if is_settled else LetterState.OPEN, None, refusals)

    def counts(self) -> dict[str, dict[LetterState, int]]:
        """Return the number of letters by dead-letter topic and state."""
        with self._lock:
            if not self._is_current(self._counts):
                counts: dict[str, dict[LetterState, int]] = {}
                for topic, state, count in self._index.query(_COUNTS):
                    counts.setdefault(topic, {})[LetterState(state)] = count
                self._counts = self._cache(counts)
            return self._counts.value

    def open_counts(self) -> dict[tuple[str, Reason], int]:
        """Return the number of open letters by dead-letter topic and reason, without letters that the flow or view of
        the topic has handled since.
        """
        with self._lock:
            if not self._is_current(self._open_counts):
                rows = self._index.query(_OPEN_COUNTS)
                counts = {(topic, Reason(reason)): count for topic, reason, count in rows}
                self._open_counts = self._cache(counts)
            return self._open_counts.value

    def _is_current(self, cached: _Cached[Any]) -> bool:
        """Return whether counts are current. While flows only read further, states change only if a refusal is
        awaited.
        """
        if cached.read != self._index.changes() or cached.serving != self._serving:
            return False
        if cached.ranges == self._ranges:
            return True
        return not cached.is_awaited and _is_further(self._ranges, cached.ranges)

    def _cache(self, value: T) -> _Cached[T]:
        is_awaited = bool(self._index.query("SELECT 1 FROM judged WHERE is_awaited LIMIT 1"))
        return _Cached(value, self._index.changes(), self._serving, self._ranges, is_awaited)

    def unread(self, log: LogSnapshot) -> dict[str, int]:
        """Return the number of offsets of each topic that the index has not read."""
        return self._index.unread({name: _bounds(log, name) for name in self._index.topics})

    def newest(
        self,
        topic: str,
        limit: int,
        states: Sequence[LetterState] = (),
        before: tuple[int, int, int] | None = None,
    ) -> list[IndexedLetter]:
        """Return the newest letters of the topic, before ``before`` (time, partition and offset). ``states`` selects
        letters by their state (default: all).
        """
        names = ", ".join(f"'{state.value}'" for state in states or LetterState)
        return [
            IndexedLetter(*row)
            for row in self._index.query(
                f"SELECT at_ms, partition, offset, bytes FROM refusals r WHERE topic = ? AND {_NEWEST_OF_LETTER}"  # noqa: S608
                " AND (at_ms, partition, offset) < (?, ?, ?)"
                f" AND {_STATE} IN ({names})"
                " ORDER BY at_ms DESC, partition DESC, offset DESC LIMIT ?",
                *(topic, *(before or (2**62, 0, 0)), limit),
            )
        ]

    def letters_after(self, topic: str, after: tuple[int, int], limit: int) -> list[LetterLocation]:
        """Return the letters of the topic after ``after`` (partition and offset), in the order of the log. Each letter
        is at its first refusal.
        """
        rows = self._index.query(
            f"SELECT partition, offset, id, {_STATE} FROM refusals r WHERE topic = ? AND {_FIRST_OF_LETTER}"  # noqa: S608
            " AND (partition, offset) > (?, ?) ORDER BY partition, offset LIMIT ?",
            *(topic, *after, limit),
        )
        return [LetterLocation(row[0], row[1], row[2], LetterState(row[3])) for row in rows]

    def accepted_by(self, letter: Letter) -> set[str]:
        """Return the dead-letter topics of the flows whose serving generation has processed the letter's record without
        rejecting it. Such a flow would count a written-back copy a second time.
        """
        origin = letter.origin
        if origin is None or origin.partition is None or origin.offset is None:
            return set()
        rows = self._index.query(
            "SELECT topic FROM handled h WHERE source = ? AND partition = ? AND ? IN (source_id, '')"
            " AND ? >= start AND ? < past AND NOT EXISTS"
            " (SELECT 1 FROM judged j WHERE j.topic = h.topic AND j.id = ? AND NOT j.is_past)",
            *(origin.topic, origin.partition, letter.topic_id, origin.offset, origin.offset, letter.id),
        )
        return {topic for (topic,) in rows}


def _is_further(ranges: Sequence[HandledRange], earlier: Sequence[HandledRange]) -> bool:
    """Return whether only the ends of the ranges differ, and none moved back."""
    return len(ranges) == len(earlier) and all(
        before.end <= after.end and msgspec.structs.replace(before, end=after.end) == after
        for before, after in zip(earlier, ranges, strict=True)
    )


def _bounds(log: LogSnapshot, topic: str) -> TopicBounds:
    if topic not in log.partitions:
        return TopicBounds("")
    numbers = range(log.partitions[topic])
    return TopicBounds(
        log.ids[topic],
        {number: log.starts[topic, number] for number in numbers},
        {number: log.committed_ends[topic, number] for number in numbers},
    )
