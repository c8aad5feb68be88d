"""Verifies a view of a topic that no flow writes: compares its rows with the last record of each key.

``TopicFold`` reads a topic up to the view's offsets, and computes the last record of each of the view's keys. It is
also used for a flow's topic if the view's key differs from the flow's key. Then the last row of a view's key depends on
the order in which the flow wrote the rows, and only the topic has that order.

Compaction and retention remove records. Compaction retains the last record of a key, so every row of a view at the
topic's end can be proven. A view that is behind can have a row whose record was replaced by a later record and then
removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Message

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.model.code_digest import upcast_digest
from headrace.model.declarations import View
from headrace.model.errors import ValueDoesNotFit
from headrace.ops.verify.comparison import RowEquality, Scratch
from headrace.ops.verify.errors import CannotVerify
from headrace.ops.verify.plain_rows import PlainRows, Value
from headrace.ops.verify.report import Finding, Report, Unprovable
from headrace.ops.verify.snapshot import StoreSnapshot

__all__ = [
    "TopicFold",
    "check_topic_view",
    "dead_letter_records",
    "missing_letters_finding",
    "schema_finding",
]

_ERRORS_PREFIX = "__headrace.errors."
_RECORDS_PER_COUNT = 5_000
_TOMBSTONES_REMOVED_CONFIG = "headrace.tombstones.removed.below"


def check_topic_view(
    cluster: Cluster,
    view: View,
    snapshot: StoreSnapshot,
    scratch: Scratch,
    report: Report,
    sample: int,
    report_progress: Callable[[int, int], None],
) -> None:
    schema = view.topic.schema
    if schema is None:
        raise CannotVerify(f"topic {view.topic.name} has no schema, and no flow writes it")
    report.found_rows = scratch.count("found")
    _check_position(cluster, view, snapshot, report)
    wrong_schema = schema_finding(snapshot, schema.fields, view.key)
    if wrong_schema is not None:
        report.findings.append(wrong_schema)
    if snapshot.upcast != upcast_digest(view.topic.upcast):
        report.findings.append(
            Finding(
                "shape",
                f"the view was built with other upcasters than topic {view.topic.name} declares now",
                "run the view's follower, which rebuilds the view",
            )
        )
    if report.findings:
        return
    fold = TopicFold(
        cluster,
        scratch,
        PlainRows(schema.fields, view.topic.key, view.key, view.topic.upcast),
        snapshot.topic,
        {},
        snapshot.offsets,
        dead_letter_records(cluster, view, snapshot.topic, snapshot.offsets),
        same_key=set(view.key) == set(view.topic.key),
        report_progress=report_progress,
    )
    fold.run()
    report.records, report.dead, report.unprovable = fold.records, fold.dead, fold.unprovable
    if fold.records_without_letter:
        report.findings.append(missing_letters_finding(view, fold.records_without_letter))
    if fold.unprovable:
        report.unprovable_rows = scratch.exclude_rows_not_derived()
    equality = RowEquality(schema.fields, is_aggregation=False)
    scratch.compare(sample=sample, differing=equality.differing_columns).add_to(report)


def _check_position(cluster: Cluster, view: View, snapshot: StoreSnapshot, report: Report) -> None:
    hint = f"rebuild the view: headrace view rebuild {app_argument()} {view.name}"
    topic = cluster.topic(view.topic.name)
    if topic is None or (snapshot.topic, snapshot.topic_id) != (topic.name, topic.id):
        state = "does not exist" if topic is None else "was recreated since"
        report.findings.append(Finding("position", f"the view follows {snapshot.topic}, which {state}", hint))
        return
    ends = cluster.ends(snapshot.topic, committed=False)
    for number, offset in sorted(snapshot.offsets.items()):
        end = ends.get(number, 0)
        if offset > end or offset < 0:
            message = f"the view is at offset {offset} of {snapshot.topic}/{number}, which ends at {end}"
            report.findings.append(Finding("position", message, hint))
    report.behind = sum(max(0, end - snapshot.offsets.get(number, 0)) for number, end in ends.items())


def schema_finding(
    snapshot: StoreSnapshot, fields: tuple[object, ...], key: tuple[str, ...]
) -> Finding | None:
    """Return a finding if the view was built with other columns or another key."""
    if tuple(snapshot.fields) == fields and snapshot.key == tuple(key):
        return None
    return Finding(
        "shape",
        f"the view was built with the columns {', '.join(field.name for field in snapshot.fields)} and the key"
        f" {', '.join(snapshot.key)}, but the view's key or its topic's schema has changed since",
        "run the view's follower, which rebuilds the view",
    )


def missing_letters_finding(view: View, records: list[str]) -> Finding:
    return Finding(
        "books",
        f"{len(records)} records do not match the view's schema and have no dead letter in {view.dead_topic}; the first"
        f" is {records[0]}",
    )


def dead_letter_records(
    cluster: Cluster, view: View, topic: str, offsets: Mapping[int, int]
) -> set[tuple[int, int]]:
    """Return partition and offset of records before ``offsets`` that are dead letters of the view. They are not in the
    view.
    """
    if cluster.topic(view.dead_topic) is None:
        return set()
    starts, ends = cluster.starts(view.dead_topic), cluster.ends(view.dead_topic)
    ranges = {number: (starts[number], end) for number, end in ends.items()}
    rejected = set()
    for message in read(cluster, view.dead_topic, ranges):
        headers: Iterable[tuple[str, object]] = message.headers() or []  # type: ignore[assignment]
        texts = {name: text for name, text in headers if isinstance(text, bytes)}
        try:
            origin = texts[f"{_ERRORS_PREFIX}topic"].decode()
            record = int(texts[f"{_ERRORS_PREFIX}partition"]), int(texts[f"{_ERRORS_PREFIX}offset"])
        except (KeyError, ValueError):
            continue  # Another program wrote this record. It does not name an origin, so it is not a dead letter.
        if origin == topic and record[1] < offsets.get(record[0], 0):
            rejected.add(record)
    return rejected


@dataclass(slots=True)
class TopicFold:
    cluster: Cluster
    scratch: Scratch
    row_converter: PlainRows
    topic: str
    starts: Mapping[int, int]
    """Per partition, the offset where the fold begins, even if its record was deleted since; 0 if unknown."""
    offsets: Mapping[int, int]
    """Per partition, the offset where the fold ends."""
    rejected: Collection[tuple[int, int]]
    batch_ends: Mapping[int, list[int]] | None = None
    """Per partition, the end offsets of the flow's batches, in order; None if no flow writes the topic."""
    same_key: bool = True
    """Whether the view has the topic's own key."""
    report_progress: Callable[[int, int], None] | None = None
    """Reports the progress: called with the number of offsets read so far, and the number of offsets to read."""
    records: int = 0
    dead: int = 0
    records_without_letter: list[str] = field(default_factory=list)
    """Records that do not match the schema and are not dead letters of the view."""
    unprovable: list[Unprovable] = field(default_factory=list)
    _partitions_with_gaps: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Fill the expected rows of the scratch file."""
        self.scratch.begin_fold()
        starts = self.cluster.starts(self.topic)
        ranges = {
            number: (max(starts.get(number, 0), self.starts.get(number, 0)), end)
            for number, end in self.offsets.items()
        }
        self.scratch.fold(self._changes(ranges))
        self.scratch.end_fold(ordered=self.batch_ends is not None)
        for number, end in sorted(self.offsets.items()):
            if self.starts.get(number, 0) < min(end, starts.get(number, 0)):
                self._add_unprovable(number, starts[number], "the records before this offset were deleted")
        policy = self.cluster.configs(self.topic).get("cleanup.policy") or ""
        if "compact" in policy:
            self._check_compaction()

    def _changes(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[Value, ...]]:
        """Return changes: partition, batch, offset, whether it is a deletion, and the columns. A deletion has only the
        columns of the key.
        """
        next_offsets = {number: low for number, (low, _) in ranges.items()}
        batches = dict.fromkeys(ranges, 0)
        for message in read(self.cluster, self.topic, dict(ranges)):
            number, offset = message.partition() or 0, message.offset() or 0
            if self.report_progress is not None and self.records % _RECORDS_PER_COUNT == 0:
                offsets_read = sum(at - ranges[partition][0] for partition, at in next_offsets.items())
                self.report_progress(offsets_read, sum(high - low for low, high in ranges.values()))
            self.records += 1
            if offset > next_offsets[number]:
                self._partitions_with_gaps.add(number)
            next_offsets[number] = offset + 1
            batches[number] = self._batch(number, offset, batches[number])
            row = self._row(message, number, offset)
            if row is not None:
                yield (number, batches[number], offset, *row)
        self._partitions_with_gaps |= {
            number for number, (low, high) in ranges.items() if low < high and next_offsets[number] < high
        }

    def _batch(self, number: int, offset: int, index: int) -> int:
        ends = self.batch_ends.get(number, []) if self.batch_ends is not None else []
        while index < len(ends) and offset >= ends[index]:
            index += 1
        return index

    def _row(self, message: Message, number: int, offset: int) -> tuple[Value, ...] | None:
        value = message.value()
        if (number, offset) in self.rejected:
            self.dead += 1
            return None
        try:
            if value is None:
                return (1, *self.scratch.row_of_key(self.row_converter.key(message.key())))
            return (0, *self.row_converter.row(value))
        except ValueDoesNotFit as error:
            self.dead += 1
            self.records_without_letter.append(f"offset {offset} of {self.topic}/{number}: {error.message}")
            return None

    # Missing records

    def _add_unprovable(self, number: int, before: int, why: str) -> None:
        self.unprovable.append(Unprovable(self.topic, number, before, why))

    def _check_compaction(self) -> None:
        """Check whether records after the view's offsets can have replaced records before them."""
        if not self.same_key:
            for number in sorted(self._partitions_with_gaps):
                self._add_unprovable(
                    number, self.offsets[number], "the topic is compacted by a key that is not the view's key"
                )
            return
        ends = self.cluster.ends(self.topic)
        removed = self._removed_below()
        for number in sorted(self._partitions_with_gaps):
            offset, end = self.offsets[number], ends.get(number, 0)
            if offset >= end:
                continue
            is_replaced, records_read = self._find_new_key(number, offset, end)
            if is_replaced:
                self._add_unprovable(
                    number,
                    offset,
                    "the topic is compacted, and later records can have replaced earlier records",
                )
            elif records_read < end - offset and (removed is None or removed.get(number, 0) > offset):
                # The missing records can be expired tombstones, which compaction removes.
                self._add_unprovable(
                    number, offset, "the topic is compacted, and later tombstones might have been removed"
                )

    def _removed_below(self) -> dict[int, int] | None:
        """Return the offset of each partition below which expired tombstones were removed; None if the log does not
        report it.
        """
        text = self.cluster.configs(self.topic).get(_TOMBSTONES_REMOVED_CONFIG)
        if text is None:
            return None
        pairs = (pair.split(":") for pair in text.split(",") if pair)
        return {int(number): int(offset) for number, offset in pairs}

    def _find_new_key(self, number: int, offset: int, end: int) -> tuple[bool, int]:
        """Read the records from ``offset`` on. Return whether one of them has a key that no remaining record before
        ``offset`` has. If so, compaction may have removed an earlier record of this key. Also return how many records
        were read.
        """
        records_read = 0
        for message in read(self.cluster, self.topic, {number: (offset, end)}):
            if self._is_new_key(message):
                return True, records_read
            records_read += 1
        return False, records_read

    def _is_new_key(self, message: Message) -> bool:
        value = message.value()
        try:
            key = (
                self.row_converter.key(message.key())
                if value is None
                else self.row_converter.key_of(self.row_converter.row(value))
            )
        except ValueDoesNotFit:
            return False
        return not self.scratch.has_key(key)
