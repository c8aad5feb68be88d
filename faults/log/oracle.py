"""The oracle: the clients record which records they sent, and which were acknowledged or delivered. The oracle compares
these with the records that can be read at the end.

The oracle uses no code of the product. Every record has a unique value that names its sender, so a value that is read
twice is a duplicate. What must hold:

    acknowledged ⊆ readable ⊆ sent      except for what retention was allowed to delete
    offsets are dense                   from the log's start to its end
    an offset never changes its bytes   a consumer receives the same before and after a crash
    no duplicates                       of records that were sent once, or by an idempotent producer
    order                               of one idempotent producer's records in a partition
    producer ids are unique             across all restarts of the broker

If a request got no response, its batch exists whole or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults.protocol.batches import Batch, parse_batches

__all__ = ["Ledger", "PartitionId", "PartitionView", "Sent", "partition_files", "view_of_files"]

PartitionId = tuple[str, int]
"""Topic and partition."""


class Sent:
    """One record in flight.

    ``once``: the record may be in the log at most once. ``ordered``: the records of its producer must be in the log in
    the order of their numbers. ``batch`` numbers the batch of the record, or is -1 if a stock client builds the
    batches.
    """

    __slots__ = ("acked", "batch", "number", "offset", "once", "ordered", "partition_id", "producer", "value")

    def __init__(
        self,
        partition_id: PartitionId,
        value: bytes,
        producer: str,
        number: int,
        batch: int = -1,
        *,
        once: bool,
        ordered: bool,
    ) -> None:
        self.partition_id = partition_id
        self.value = value
        self.producer = producer
        self.number = number
        self.batch = batch
        self.once = once
        self.ordered = ordered
        self.acked = False
        self.offset: int | None = None


@dataclass(slots=True)
class PartitionView:
    """Everything readable in one partition."""

    partition_id: PartitionId
    start: int
    end: int
    values: dict[int, bytes] = field(default_factory=dict)


class Ledger:
    """The records of one run. The clients add to it from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[PartitionId, dict[bytes, Sent]] = {}
        self._delivered: dict[PartitionId, dict[int, bytes]] = {}
        self._starts: dict[PartitionId, int] = {}
        self._producer_ids: set[int] = set()
        self.problems: list[str] = []
        self.lost = 0
        self.duplicated = 0
        self.sent = 0
        self.acked = 0

    # Calls of the clients

    def send(self, sent: Iterable[Sent]) -> None:
        """Record the records before their bytes are sent."""
        with self._lock:
            for record in sent:
                self._sent.setdefault(record.partition_id, {})[record.value] = record
                self.sent += 1

    def ack(self, sent: Iterable[Sent], base_offset: int | None) -> None:
        """Record an acknowledgement. The offset is None if the response does not contain it."""
        with self._lock:
            for index, record in enumerate(sent):
                offset = None if base_offset is None else base_offset + index
                if record.acked and None not in (record.offset, offset) and record.offset != offset:
                    self.problems.append(
                        f"{_identify(record.value)} was acknowledged at offset {record.offset} and at {offset}"
                    )
                self.acked += not record.acked
                record.acked = True
                record.offset = offset if offset is not None else record.offset

    def record_delivery(self, partition_id: PartitionId, offset: int, value: bytes) -> None:
        """Record that a consumer received the value."""
        with self._lock:
            first_value = self._delivered.setdefault(partition_id, {}).setdefault(offset, value)
            if first_value != value:
                self.problems.append(
                    f"{_location(partition_id, offset)} was delivered as {_identify(first_value)}"
                    f" and later as {_identify(value)}"
                )

    def record_start(self, partition_id: PartitionId, start: int) -> None:
        """Record the log start offset that a response contained. Responses can overtake each other, so the highest one
        counts.
        """
        with self._lock:
            self._starts[partition_id] = max(start, self._starts.get(partition_id, 0))

    def record_producer_id(self, producer_id: int) -> None:
        """Record a producer id that the broker assigned. It must never assign the id again."""
        with self._lock:
            if producer_id in self._producer_ids:
                self.problems.append(f"producer id {producer_id} was assigned twice")
            self._producer_ids.add(producer_id)

    def report_problem(self, problem: str) -> None:
        with self._lock:
            self.problems.append(problem)

    def partition_ids(self) -> list[PartitionId]:
        with self._lock:
            return list(self._sent)

    @property
    def delivered(self) -> int:
        with self._lock:
            return sum(map(len, self._delivered.values()))

    def sent_bytes(self, partition_id: PartitionId) -> int:
        """Return the size of all acknowledged values in the partition."""
        with self._lock:
            return sum(
                len(value) for value, record in self._sent.get(partition_id, {}).items() if record.acked
            )

    # Checks

    def check(self, view: PartitionView, *, trimmed: bool = False) -> None:
        """``trimmed``: retention may have deleted the records before the start."""
        with self._lock:
            self._check_range(view, trimmed=trimmed)
            self._check_delivered(view)
            self._check_values(view)
            self._check_acks(view)

    def _check_range(self, view: PartitionView, *, trimmed: bool) -> None:
        if view.start > 0 and not trimmed:
            self.problems.append(
                f"{view.partition_id} starts at {view.start}, but no record may be deleted from it"
            )
        if view.start < self._starts.get(view.partition_id, 0):
            self.problems.append(
                f"the start of {view.partition_id} moved back from {self._starts[view.partition_id]} to {view.start}"
            )
        missing_offsets = [offset for offset in range(view.start, view.end) if offset not in view.values]
        if missing_offsets:
            self.problems.append(
                f"{len(missing_offsets)} offsets of {view.partition_id} between {view.start} and {view.end}"
                " cannot be read, "
                f"the first is {missing_offsets[0]}"
            )
        for offset in view.values:
            if not view.start <= offset < view.end:
                self.problems.append(
                    f"{_location(view.partition_id, offset)} is outside {view.start} to {view.end}"
                )

    def _check_delivered(self, view: PartitionView) -> None:
        delivered = self._delivered.setdefault(view.partition_id, {})
        for offset, value in delivered.items():
            if offset < view.start:
                continue
            current = view.values.get(offset)
            if current is None:
                self.lost += 1
                self.problems.append(
                    f"{_location(view.partition_id, offset)} was delivered to a consumer but is lost"
                )
            elif current != value:
                self.problems.append(
                    f"{_location(view.partition_id, offset)} was {_identify(value)}, but is now {_identify(current)}"
                )
        delivered.update(view.values)

    def _check_values(self, view: PartitionView) -> None:
        sent = self._sent.get(view.partition_id, {})
        first_offsets: dict[bytes, int] = {}
        last: dict[str, tuple[int, int]] = {}
        for offset in sorted(view.values):
            value = view.values[offset]
            record = sent.get(value)
            if record is None:
                self.problems.append(
                    f"{_location(view.partition_id, offset)} has {_identify(value)},"
                    " which no client sent to this partition"
                )
                continue
            if value in first_offsets and record.once:
                self.duplicated += 1
                self.problems.append(
                    f"{_identify(value)} is at {_location(view.partition_id, first_offsets[value])}"
                    f" and again at {offset}"
                )
            if record.ordered:
                number, at = last.get(record.producer, (-1, -1))
                if record.number < number:
                    self.problems.append(
                        f"{record.producer} sent {number} before {record.number}, "
                        f"but they are at {at} and {offset} of {view.partition_id}"
                    )
                last[record.producer] = (record.number, offset)
            first_offsets.setdefault(value, offset)
        self._check_partial_batches(view, sent, first_offsets)

    def _check_partial_batches(
        self, view: PartitionView, sent: dict[bytes, Sent], first_offsets: dict[bytes, int]
    ) -> None:
        sent_counts: dict[tuple[str, int], int] = {}
        present_offsets: dict[tuple[str, int], list[int]] = {}
        for value, record in sent.items():
            if record.batch < 0:
                continue
            key = (record.producer, record.batch)
            sent_counts[key] = sent_counts.get(key, 0) + 1
            if value in first_offsets:
                present_offsets.setdefault(key, []).append(first_offsets[value])
        for key, offsets in present_offsets.items():
            # Retention may have deleted the beginning of the first batch. No other batch may be partial.
            if len(offsets) != sent_counts[key] and (min(offsets) != view.start or view.start == 0):
                self.problems.append(
                    f"only {len(offsets)} of {sent_counts[key]} records of batch {key} are in {view.partition_id}"
                )

    def _check_acks(self, view: PartitionView) -> None:
        present = set(view.values.values())
        for record in self._sent.get(view.partition_id, {}).values():
            if not record.acked or (record.offset is not None and record.offset < view.start):
                continue
            if record.offset is None:
                if record.value not in present and view.start == 0:
                    self.lost += 1
                    self.problems.append(
                        f"{_identify(record.value)} was acknowledged, but is not in {view.partition_id}"
                    )
                continue
            current = view.values.get(record.offset)
            if current == record.value:
                continue
            if record.value not in present:
                self.lost += 1
                self.problems.append(
                    f"{_location(view.partition_id, record.offset)} was acknowledged, but is lost"
                )
            else:
                acked_location = _location(view.partition_id, record.offset)
                self.problems.append(
                    f"{_identify(record.value)} was acknowledged at {acked_location} but is at another offset"
                )


def _identify(value: bytes) -> str:
    """Return the part of a value that identifies it, without the padding."""
    return b":".join(value.split(b":", 2)[:2])[:40].decode(errors="replace")


def _location(partition_id: PartitionId, offset: int) -> str:
    return f"{partition_id[0]}-{partition_id[1]}@{offset}"


# Files of a stopped broker


def partition_files(data: Path, topic_id: bytes, partition: int) -> Path:
    """Return the folder of a partition. The folder of a topic is named by the topic id."""
    return data / "topics" / topic_id.hex() / str(partition)


def batches_of(directory: Path, report_problem: Callable[[str], None]) -> Iterator[Batch]:
    """Yield every batch of every segment, in order. Report anything that is not a whole batch to ``report_problem``."""
    expected: int | None = None
    for path in sorted(directory.glob("*.log")):
        base = int(path.stem)
        if expected is not None and base != expected:
            report_problem(f"{path} begins at {base}, but the file before it ends at {expected}")
        expected = base
        for item in parse_batches(path.read_bytes()):
            if isinstance(item, str):
                report_problem(f"{path}: {item}")
                return
            if item.base_offset != expected:
                report_problem(f"{path}: a batch begins at offset {item.base_offset} instead of {expected}")
            expected = item.next_offset
            yield item


def view_of_files(
    directory: Path, partition_id: PartitionId, report_problem: Callable[[str], None]
) -> PartitionView:
    """Return the contents of the segment files, without the values of compressed batches."""
    view = PartitionView(partition_id, -1, 0)
    for batch in batches_of(directory, report_problem):
        if view.start < 0:
            view.start = batch.base_offset
        view.end = batch.next_offset
        for index, value in enumerate(batch.values or ()):
            view.values[batch.base_offset + index] = value
    view.start = max(view.start, 0)
    return view
