"""The oracle: what was sent, acknowledged and given, noted by the clients themselves, and held against what can be
read back.

It knows nothing from the code under test. Records carry a value that is theirs alone, so a value that comes back
tells where it was sent from, and a value that comes back twice is a twin. What must hold:

    acknowledged ⊆ readable ⊆ sent      but for what retention was allowed to delete
    offsets are dense                   from the log's start to its end
    an offset never changes its bytes   also what a consumer was given before a crash is the same after it
    no twins                            of what was sent once, or by an idempotent producer
    order                               of one idempotent producer's records in a partition
    no producer id is given out twice   also not by different runs of the broker

An unanswered request may be there or not, never half: all records of its batch, or none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.faults.batches import Batch, parse_batches

__all__ = ["Ledger", "Place", "Sent", "View", "partition_files", "view_of_files"]

Place = tuple[str, int]
"""Topic and partition."""


class Sent:
    """One record on its way.

    ``once``: it may be in the log at most once. ``ordered``: its producer's records must be in the log in the order of
    their numbers. ``batch`` names those that must come with it, or is -1 where a stock client decides that.
    """

    __slots__ = ("acked", "batch", "number", "offset", "once", "ordered", "place", "producer", "value")

    def __init__(
        self,
        place: Place,
        value: bytes,
        producer: str,
        number: int,
        batch: int = -1,
        *,
        once: bool,
        ordered: bool,
    ) -> None:
        self.place = place
        self.value = value
        self.producer = producer
        self.number = number
        self.batch = batch
        self.once = once
        self.ordered = ordered
        self.acked = False
        self.offset: int | None = None


@dataclass(slots=True)
class View:
    """All that could be read of one partition."""

    place: Place
    start: int
    end: int
    values: dict[int, bytes] = field(default_factory=dict)


class Ledger:
    """Kept by the clients of one run, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[Place, dict[bytes, Sent]] = {}
        self._given: dict[Place, dict[int, bytes]] = {}
        self._starts: dict[Place, int] = {}
        self._producer_ids: set[int] = set()
        self.problems: list[str] = []
        self.lost = 0
        self.duplicated = 0
        self.sent = 0
        self.acked = 0

    # What the clients note

    def send(self, sent: Iterable[Sent]) -> None:
        """Before the bytes leave."""
        with self._lock:
            for one in sent:
                self._sent.setdefault(one.place, {})[one.value] = one
                self.sent += 1

    def ack(self, sent: Iterable[Sent], base_offset: int | None) -> None:
        """The answer said that they are kept; an answer that knows no offset any more gives ``None``."""
        with self._lock:
            for index, one in enumerate(sent):
                offset = None if base_offset is None else base_offset + index
                if one.acked and None not in (one.offset, offset) and one.offset != offset:
                    self.problems.append(
                        f"{_name(one.value)} was acknowledged at {one.offset} and at {offset}"
                    )
                self.acked += not one.acked
                one.acked = True
                one.offset = offset if offset is not None else one.offset

    def give(self, place: Place, offset: int, value: bytes) -> None:
        """A consumer was given this."""
        with self._lock:
            known = self._given.setdefault(place, {}).setdefault(offset, value)
            if known != value:
                self.problems.append(
                    f"{_at(place, offset)} was given as {_name(known)} and later as {_name(value)}"
                )

    def saw_start(self, place: Place, start: int) -> None:
        """An answer said where the log begins. Answers overtake each other, so the farthest is noted."""
        with self._lock:
            self._starts[place] = max(start, self._starts.get(place, 0))

    def take_producer_id(self, producer_id: int) -> None:
        """The broker gave this id to a producer; it must never give it again."""
        with self._lock:
            if producer_id in self._producer_ids:
                self.problems.append(f"producer id {producer_id} was given out twice")
            self._producer_ids.add(producer_id)

    def object(self, problem: str) -> None:
        with self._lock:
            self.problems.append(problem)

    def places(self) -> list[Place]:
        with self._lock:
            return list(self._sent)

    @property
    def given(self) -> int:
        with self._lock:
            return sum(map(len, self._given.values()))

    def sent_bytes(self, place: Place) -> int:
        """How much was acknowledged for the partition, in bytes of values."""
        with self._lock:
            return sum(len(value) for value, one in self._sent.get(place, {}).items() if one.acked)

    # What is held against it

    def check(self, view: View, *, trimmed: bool = False) -> None:
        """``trimmed``: the topic's retention may have deleted what lies before the start."""
        with self._lock:
            self._check_range(view, trimmed=trimmed)
            self._check_given(view)
            self._check_values(view)
            self._check_acks(view)

    def _check_range(self, view: View, *, trimmed: bool) -> None:
        if view.start > 0 and not trimmed:
            self.problems.append(f"{view.place} starts at {view.start}, and nothing may be deleted from it")
        if view.start < self._starts.get(view.place, 0):
            self.problems.append(
                f"the start of {view.place} moved back from {self._starts[view.place]} to {view.start}"
            )
        missing = [offset for offset in range(view.start, view.end) if offset not in view.values]
        if missing:
            self.problems.append(
                f"{len(missing)} offsets of {view.place} in {view.start} to {view.end} cannot be read, "
                f"the first is {missing[0]}"
            )
        for offset in view.values:
            if not view.start <= offset < view.end:
                self.problems.append(f"{_at(view.place, offset)} lies outside {view.start} to {view.end}")

    def _check_given(self, view: View) -> None:
        given = self._given.setdefault(view.place, {})
        for offset, value in given.items():
            if offset < view.start:
                continue
            now = view.values.get(offset)
            if now is None:
                self.lost += 1
                self.problems.append(f"{_at(view.place, offset)} was given to a consumer and is gone")
            elif now != value:
                self.problems.append(f"{_at(view.place, offset)} was {_name(value)} and is now {_name(now)}")
        given.update(view.values)

    def _check_values(self, view: View) -> None:
        sent = self._sent.get(view.place, {})
        found: dict[bytes, int] = {}
        last: dict[str, tuple[int, int]] = {}
        for offset in sorted(view.values):
            value = view.values[offset]
            one = sent.get(value)
            if one is None:
                self.problems.append(
                    f"{_at(view.place, offset)} holds {_name(value)}, which nobody sent there"
                )
                continue
            if value in found and one.once:
                self.duplicated += 1
                self.problems.append(
                    f"{_name(value)} is at {_at(view.place, found[value])} and again at {offset}"
                )
            if one.ordered:
                number, at = last.get(one.producer, (-1, -1))
                if one.number < number:
                    self.problems.append(
                        f"{one.producer} sent {number} before {one.number}, "
                        f"but they are at {at} and {offset} of {view.place}"
                    )
                last[one.producer] = (one.number, offset)
            found.setdefault(value, offset)
        self._check_halves(view, sent, found)

    def _check_halves(self, view: View, sent: dict[bytes, Sent], found: dict[bytes, int]) -> None:
        whole: dict[tuple[str, int], int] = {}
        here: dict[tuple[str, int], list[int]] = {}
        for value, one in sent.items():
            if one.batch < 0:
                continue
            key = (one.producer, one.batch)
            whole[key] = whole.get(key, 0) + 1
            if value in found:
                here.setdefault(key, []).append(found[value])
        for key, offsets in here.items():
            # The log may have been cut in the middle of a batch, but nowhere else.
            if len(offsets) != whole[key] and (min(offsets) != view.start or view.start == 0):
                self.problems.append(
                    f"{len(offsets)} of {whole[key]} records of batch {key} are in {view.place}"
                )

    def _check_acks(self, view: View) -> None:
        present = set(view.values.values())
        for one in self._sent.get(view.place, {}).values():
            if not one.acked or (one.offset is not None and one.offset < view.start):
                continue
            if one.offset is None:
                if one.value not in present and view.start == 0:
                    self.lost += 1
                    self.problems.append(f"{_name(one.value)} was acknowledged and is not in {view.place}")
                continue
            now = view.values.get(one.offset)
            if now == one.value:
                continue
            if one.value not in present:
                self.lost += 1
                self.problems.append(f"{_at(view.place, one.offset)} was acknowledged and is lost")
            else:
                self.problems.append(
                    f"{_name(one.value)} was acknowledged at {_at(view.place, one.offset)} but is elsewhere"
                )


def _name(value: bytes) -> str:
    """The part of a value that says whose it is; the rest is padding."""
    return b":".join(value.split(b":", 2)[:2])[:40].decode(errors="replace")


def _at(place: Place, offset: int) -> str:
    return f"{place[0]}-{place[1]}@{offset}"


# Reading the files of a broker that does not run


def partition_files(data: Path, topic_id: bytes, partition: int) -> Path:
    """Where a data directory keeps a partition: topics are named by their id there."""
    return data / "topics" / topic_id.hex() / str(partition)


def batches_of(directory: Path, object_to: Callable[[str], None]) -> Iterator[Batch]:
    """Every batch of every segment, in order; what is not a whole batch is objected to."""
    expected: int | None = None
    for path in sorted(directory.glob("*.log")):
        base = int(path.stem)
        if expected is not None and base != expected:
            object_to(f"{path} begins at {base}, and the file before it ends at {expected}")
        expected = base
        for item in parse_batches(path.read_bytes()):
            if isinstance(item, str):
                object_to(f"{path}: {item}")
                return
            if item.base_offset != expected:
                object_to(f"{path}: offset {item.base_offset} where {expected} was due")
            expected = item.next_offset
            yield item


def view_of_files(directory: Path, place: Place, object_to: Callable[[str], None]) -> View:
    """What the segment files hold; values of compressed batches are left out."""
    view = View(place, -1, 0)
    for batch in batches_of(directory, object_to):
        if view.start < 0:
            view.start = batch.base_offset
        view.end = batch.next_offset
        for index, value in enumerate(batch.values or ()):
            view.values[batch.base_offset + index] = value
    view.start = max(view.start, 0)
    return view
