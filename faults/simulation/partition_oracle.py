"""The oracle of one simulated partition. It compares the sent, acknowledged and delivered batches, byte for byte, with
the batches that can be read.

It works with whole batches. The broker never changes a batch from byte 21 on, because its CRC covers these
bytes. Every batch has a unique value, so these bytes identify it. An acknowledged or delivered batch must
stay at its offset. A batch without a response may exist or not, but never in part and never twice. The broker
itself writes transaction markers; only delivered markers count.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from faults.outcome import Outcome

__all__ = ["Findings", "PartitionOracle", "Sent", "Stored", "split_batches"]

_HEAD = struct.Struct(">qiib")
_DELTA = struct.Struct(">i")
_PRODUCER = struct.Struct(">q")
_DELTA_AT, _BODY_AT, _HEAD_SIZE = 23, 21, 61
_PRODUCER_IN_BODY = 22
_TRANSACTIONAL_BIT, _CONTROL_BIT = 0x10, 0x20


@dataclass(slots=True)
class Findings:
    problems: list[str] = field(default_factory=list)
    lost: int = 0
    duplicated: int = 0

    def report_problem(self, problem: str) -> None:
        self.problems.append(problem)

    def report_to(self, outcome: Outcome) -> None:
        """Add all problems to the outcome. It gets no memory figure: the broker runs in the process of the
        test, so its memory cannot be measured separately.
        """
        outcome.lost += self.lost
        outcome.duplicated += self.duplicated
        outcome.problems += self.problems


@dataclass(slots=True, eq=False)
class Sent:
    number: int
    body: bytes
    count: int
    producer: int = -1
    sequence: int = -1
    offset: int | None = None
    """The acknowledged offset."""
    late: bool = False
    """Whether it was sent after the partition had failed."""


@dataclass(frozen=True, slots=True)
class Stored:
    base: int
    epoch: int
    count: int
    body: bytes
    size: int

    @property
    def next(self) -> int:
        return self.base + self.count

    @property
    def is_transactional(self) -> bool:
        return bool(self.body[1] & _TRANSACTIONAL_BIT)

    @property
    def is_marker(self) -> bool:
        return bool(self.body[1] & _CONTROL_BIT)

    @property
    def producer(self) -> int:
        return int(_PRODUCER.unpack_from(self.body, _PRODUCER_IN_BODY)[0])

    @property
    def is_abort(self) -> bool:
        """Whether a marker is an abort. The key of its only record is a version and a type, two bytes each. Type 0
        means abort.
        """
        at = _HEAD_SIZE - _BODY_AT
        # Length, attributes, two deltas and the key's length are one byte each.
        return self.body[at + 5 : at + 9] == bytes(4)


def split_batches(data: bytes) -> list[Stored]:
    """Return the batches in a response. Raise ``ValueError`` unless all are whole."""
    batches = []
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD_SIZE:
            raise ValueError(f"{len(data) - at} stray bytes after the last batch")
        base, length, epoch, magic = _HEAD.unpack_from(data, at)
        size = length + 12
        if magic != 2 or size < _HEAD_SIZE or at + size > len(data):
            raise ValueError(f"incomplete batch at {at}: magic {magic}, {size} bytes of {len(data) - at}")
        (delta,) = _DELTA.unpack_from(data, at + _DELTA_AT)
        batches.append(Stored(base, epoch, delta + 1, bytes(data[at + _BODY_AT : at + size]), size))
        at += size
    return batches


class PartitionOracle:
    def __init__(self, name: str, findings: Findings) -> None:
        self.name = name
        self.start_allowed = 0
        """The highest offset up to which a request or retention may have deleted records."""
        self.start_promised = 0
        """The start offset of the last acknowledged deletion."""
        self.sent: dict[bytes, Sent] = {}
        self.has_failed: Callable[[], bool] = lambda: False
        """Whether the partition has failed, so that it must not acknowledge new batches."""
        self.is_durable: Callable[[bytes], bool] = lambda body: True
        """Whether the disk has these bytes, according to the simulation."""
        self._findings = findings
        self._batches: dict[int, tuple[bytes, int, float]] = {}

    # Calls of the clients

    def send(self, batch: bytes, count: int, producer: int = -1, sequence: int = -1) -> Sent:
        body = bytes(batch[_BODY_AT:])
        sent = Sent(len(self.sent), body, count, producer, sequence, late=self.has_failed())
        self.sent[sent.body] = sent
        return sent

    def ack(self, sent: Sent, offset: int, now: float) -> None:
        if sent.offset is not None and sent.offset != offset:
            self._report_problem(
                f"batch {sent.number} was acknowledged at offset {sent.offset} and at {offset}"
            )
        if sent.late and self.has_failed():
            self._report_problem(
                f"batch {sent.number} was sent after the failure and acknowledged at {offset}"
            )
        if not self.is_durable(sent.body):
            self._report_problem(f"batch {sent.number} was acknowledged at {offset}, but is not on the disk")
        sent.offset = offset
        self._record_batch(offset, sent.body, sent.count, now)

    def record_delivery(self, stored: Stored, now: float) -> None:
        """Record that a reader received this batch."""
        sent = self.sent.get(stored.body)
        if sent is None:
            if not stored.is_marker:
                self._report_problem(f"offset {stored.base} was delivered with bytes that no client sent")
        elif sent.count != stored.count:
            self._report_problem(
                f"batch {sent.number} of {sent.count} records was delivered with {stored.count}"
            )
        self._record_batch(stored.base, stored.body, stored.count, now)

    def _record_batch(self, offset: int, body: bytes, count: int, now: float) -> None:
        known_batch = self._batches.get(offset)
        if known_batch is None:
            self._batches[offset] = (body, count, now)
        elif known_batch[0] != body:
            self._report_problem(f"offset {offset} changed its bytes")

    def allow_start(self, offset: int) -> None:
        self.start_allowed = max(self.start_allowed, offset)

    def promise_start(self, offset: int) -> None:
        self.start_promised = max(self.start_promised, offset)

    def ranges(self) -> list[tuple[int, int]]:
        """Return offset and record count of every acknowledged or delivered batch."""
        return [(offset, count) for offset, (_, count, _) in sorted(self._batches.items())]

    @property
    def acked(self) -> int:
        return sum(batch.offset is not None for batch in self.sent.values())

    # Checks

    def check(
        self,
        stored: list[Stored],
        start: int,
        end: int,
        old_end: int,
        now: float,
        *,
        may_lose_since: float | None = None,
    ) -> None:
        """``stored`` are all readable batches from ``start`` to ``end``. When the broker last started, it
        recovered every record below the offset ``old_end``. ``may_lose_since``: records acknowledged after
        this time may be missing, together with all records after them.
        """
        self._check_start(start)
        self._check_sequence(stored, start, end)
        if may_lose_since is not None:
            self._forget_lost(old_end, may_lose_since)
        self._check_bodies(stored)
        stored_by_offset = {batch.base: batch for batch in stored}
        for offset, (body, count, _) in sorted(self._batches.items()):
            if offset + count <= start:
                continue
            stored_batch = stored_by_offset.get(offset)
            if stored_batch is None:
                self._findings.lost += 1
                self._report_problem(f"offset {offset}, which was acknowledged or delivered, is missing")
            elif stored_batch.body != body:
                self._findings.lost += 1
                self._report_problem(f"offset {offset} has other bytes than were acknowledged or delivered")
        for batch in stored:
            self._record_batch(batch.base, batch.body, batch.count, now)

    def check_gap(self, stored: list[Stored], start: int, damaged: set[int]) -> None:
        """Check a damaged log: all known batches except the ``damaged`` ones must exist."""
        self._check_bodies(stored)
        stored_by_offset = {batch.base: batch for batch in stored}
        for offset, (body, count, _) in sorted(self._batches.items()):
            if offset + count <= start:
                continue
            stored_batch = stored_by_offset.get(offset)
            if stored_batch is not None and stored_batch.body != body:
                self._report_problem(f"offset {offset} has other bytes than were acknowledged")
            elif stored_batch is None and offset not in damaged:
                self._findings.lost += 1
                self._report_problem(f"offset {offset}, which is not damaged, cannot be read")

    def _check_start(self, start: int) -> None:
        if start < self.start_promised:
            self._report_problem(f"the log starts at {start}, but {self.start_promised} was acknowledged")
        if start > self.start_allowed:
            self._report_problem(f"the log starts at {start}, but at most {self.start_allowed} is allowed")

    def _check_sequence(self, stored: list[Stored], start: int, end: int) -> None:
        expected = start
        epoch = -1
        for index, batch in enumerate(stored):
            if batch.base != expected and not (index == 0 and batch.base <= start < batch.next):
                self._report_problem(f"a batch starts at offset {batch.base} instead of {expected}")
            if batch.epoch < epoch:
                self._report_problem(f"epoch {batch.epoch} at offset {batch.base} comes after epoch {epoch}")
            expected, epoch = batch.next, batch.epoch
        if expected != end and (stored or start != end):
            self._report_problem(f"the log ends at {end}, but can be read up to {expected}")

    def _check_bodies(self, stored: list[Stored]) -> None:
        offsets: dict[bytes, int] = {}
        last: dict[int, int] = {}
        for batch in stored:
            sent = self.sent.get(batch.body)
            if batch.is_marker:
                continue
            if sent is None:
                self._report_problem(f"offset {batch.base} has bytes that no client sent")
                continue
            if batch.body in offsets:
                self._findings.duplicated += 1
                self._report_problem(
                    f"batch {sent.number} is at {offsets[batch.body]} and again at {batch.base}"
                )
            offsets[batch.body] = batch.base
            if sent.producer >= 0:
                if sent.sequence <= last.get(sent.producer, -1):
                    self._report_problem(
                        f"sequence {sent.sequence} of producer {sent.producer} is out of order"
                    )
                last[sent.producer] = sent.sequence

    def _forget_lost(self, end: int, since: float) -> None:
        for offset, (body, count, at) in list(self._batches.items()):
            if offset + count > end and at >= since:
                del self._batches[offset]
                if body in self.sent:
                    self.sent[body].offset = None

    def _report_problem(self, problem: str) -> None:
        self._findings.report_problem(f"{self.name}: {problem}")
