"""The oracle of one simulated partition: what was sent, acknowledged and given, held byte for byte against what can be
read.

It works with whole batches. Everything of a batch behind its first 21 bytes is under the batch's CRC and is never
changed by the broker; every batch carries a value that is its own, so these bytes say which one it is. A batch that was
answered must be at its offset for good, one that was given to a reader as well; one that was not answered may be there
or not, never half and never twice. Markers of transactions are the broker's own: of them only what was given counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.faults.outcome import Outcome

__all__ = ["Book", "Objections", "Sent", "Stored", "split"]

_HEAD = struct.Struct(">qiib")
_DELTA = struct.Struct(">i")
_PRODUCER = struct.Struct(">q")
_DELTA_AT, _BODY_AT, _HEAD_SIZE = 23, 21, 61
_PRODUCER_IN_BODY = 22
_TRANSACTIONAL_BIT, _CONTROL_BIT = 0x10, 0x20


@dataclass(slots=True)
class Objections:
    problems: list[str] = field(default_factory=list)
    lost: int = 0
    duplicated: int = 0

    def object(self, problem: str) -> None:
        self.problems.append(problem)

    def tell(self, outcome: Outcome) -> None:
        """All that was objected to. The broker is simulated in this process, so its own memory is not known."""
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
    """Where it was acknowledged."""
    late: bool = False
    """Sent when the partition had failed already."""


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
        """Of a marker: its only record's key is a version and a type, two bytes each, and 0 is an abort."""
        at = _HEAD_SIZE - _BODY_AT
        # Length, attributes, two deltas and the key's length are one byte each.
        return self.body[at + 5 : at + 9] == bytes(4)


def split(data: bytes) -> list[Stored]:
    """The batches in what a reader was given; raises ``ValueError`` unless it is whole batches."""
    found = []
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD_SIZE:
            raise ValueError(f"{len(data) - at} stray bytes behind the last batch")
        base, length, epoch, magic = _HEAD.unpack_from(data, at)
        size = length + 12
        if magic != 2 or size < _HEAD_SIZE or at + size > len(data):
            raise ValueError(f"no whole batch at byte {at}: magic {magic}, {size} bytes of {len(data) - at}")
        (delta,) = _DELTA.unpack_from(data, at + _DELTA_AT)
        found.append(Stored(base, epoch, delta + 1, bytes(data[at + _BODY_AT : at + size]), size))
        at += size
    return found


class Book:
    def __init__(self, name: str, objections: Objections) -> None:
        self.name = name
        self.start_allowed = 0
        """The farthest that anybody asked, or allowed, to delete."""
        self.start_promised = 0
        """What was answered as deleted."""
        self.sent: dict[bytes, Sent] = {}
        self.has_failed: Callable[[], bool] = lambda: False
        """Whether the partition may take nothing any more."""
        self.is_durable: Callable[[bytes], bool] = lambda body: True
        """Whether the disk has these bytes, by what the simulation knows of it."""
        self._objections = objections
        self._known: dict[int, tuple[bytes, int, float]] = {}

    # What clients note

    def send(self, batch: bytes, count: int, producer: int = -1, sequence: int = -1) -> Sent:
        body = bytes(batch[_BODY_AT:])
        one = Sent(len(self.sent), body, count, producer, sequence, late=self.has_failed())
        self.sent[one.body] = one
        return one

    def ack(self, one: Sent, offset: int, now: float) -> None:
        if one.offset is not None and one.offset != offset:
            self._object(f"batch {one.number} was acknowledged at {one.offset} and at {offset}")
        if one.late and self.has_failed():
            self._object(f"batch {one.number} was sent after the failure and acknowledged at {offset}")
        if not self.is_durable(one.body):
            self._object(f"batch {one.number} was acknowledged at {offset}, and the disk has not got it")
        one.offset = offset
        self._know(offset, one.body, one.count, now)

    def give(self, stored: Stored, now: float) -> None:
        """A reader was given this batch."""
        one = self.sent.get(stored.body)
        if one is None:
            if not stored.is_marker:
                self._object(f"offset {stored.base} was given with bytes that nobody sent")
        elif one.count != stored.count:
            self._object(f"batch {one.number} of {one.count} records was given as {stored.count}")
        self._know(stored.base, stored.body, stored.count, now)

    def _know(self, offset: int, body: bytes, count: int, now: float) -> None:
        known = self._known.get(offset)
        if known is None:
            self._known[offset] = (body, count, now)
        elif known[0] != body:
            self._object(f"offset {offset} has changed its bytes")

    def allow_start(self, offset: int) -> None:
        self.start_allowed = max(self.start_allowed, offset)

    def promise_start(self, offset: int) -> None:
        self.start_promised = max(self.start_promised, offset)

    def places(self) -> list[tuple[int, int]]:
        """Offset and number of records of every batch that was acknowledged or given."""
        return [(offset, count) for offset, (_, count, _) in sorted(self._known.items())]

    @property
    def acked(self) -> int:
        return sum(one.offset is not None for one in self.sent.values())

    # What is held against it

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
        """``stored`` is everything that can be read from ``start`` to ``end``, of which the last start found what is
        below ``old_end``. ``may_lose_since``: what was acknowledged after this moment need not be there, if all
        behind it is gone as well.
        """
        self._check_start(start)
        self._check_run(stored, start, end)
        if may_lose_since is not None:
            self._give_up(old_end, may_lose_since)
        self._check_bodies(stored)
        at = {one.base: one for one in stored}
        for offset, (body, count, _) in sorted(self._known.items()):
            if offset + count <= start:
                continue
            found = at.get(offset)
            if found is None:
                self._objections.lost += 1
                self._object(f"offset {offset}, which was acknowledged or given, is gone")
            elif found.body != body:
                self._objections.lost += 1
                self._object(f"offset {offset} holds other bytes than were acknowledged or given")
        for one in stored:
            self._know(one.base, one.body, one.count, now)

    def check_gap(self, stored: list[Stored], start: int, damaged: set[int]) -> None:
        """As the end of ``check``, for a log with damage: all known batches but the ``damaged`` ones are there."""
        self._check_bodies(stored)
        at = {one.base: one for one in stored}
        for offset, (body, count, _) in sorted(self._known.items()):
            if offset + count <= start:
                continue
            found = at.get(offset)
            if found is not None and found.body != body:
                self._object(f"offset {offset} holds other bytes than were acknowledged")
            elif found is None and offset not in damaged:
                self._objections.lost += 1
                self._object(f"offset {offset}, which is not damaged, cannot be read")

    def _check_start(self, start: int) -> None:
        if start < self.start_promised:
            self._object(f"the log starts at {start}, and {self.start_promised} was promised")
        if start > self.start_allowed:
            self._object(f"the log starts at {start}, and at most {self.start_allowed} was to be deleted")

    def _check_run(self, stored: list[Stored], start: int, end: int) -> None:
        expected = start
        epoch = -1
        for index, one in enumerate(stored):
            if one.base != expected and not (index == 0 and one.base <= start < one.next):
                self._object(f"offset {one.base} comes where {expected} was due")
            if one.epoch < epoch:
                self._object(f"epoch {one.epoch} at offset {one.base} comes behind epoch {epoch}")
            expected, epoch = one.next, one.epoch
        if expected != end and (stored or start != end):
            self._object(f"the log ends at {end}, but can be read to {expected}")

    def _check_bodies(self, stored: list[Stored]) -> None:
        found: dict[bytes, int] = {}
        last: dict[int, int] = {}
        for one in stored:
            sent = self.sent.get(one.body)
            if one.is_marker:
                continue
            if sent is None:
                self._object(f"offset {one.base} holds bytes that nobody sent")
                continue
            if one.body in found:
                self._objections.duplicated += 1
                self._object(f"batch {sent.number} is at {found[one.body]} and again at {one.base}")
            found[one.body] = one.base
            if sent.producer >= 0:
                if sent.sequence <= last.get(sent.producer, -1):
                    self._object(f"sequence {sent.sequence} of producer {sent.producer} is out of order")
                last[sent.producer] = sent.sequence

    def _give_up(self, end: int, since: float) -> None:
        for offset, (body, count, at) in list(self._known.items()):
            if offset + count > end and at >= since:
                del self._known[offset]
                if body in self.sent:
                    self.sent[body].offset = None

    def _object(self, problem: str) -> None:
        self._objections.object(f"{self.name}: {problem}")
