"""Steps from before what is remembered: for whoever comes back with a cursor that is older than that.

A cursor may be made up, and what is read because of it is remembered for others too. So every place in it is checked
against what the log says of it, or not used. What is read is bounded; what does not fit is too old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec
from confluent_kafka import Message

from headrace.client.reading import read
from headrace.model.progress import Batch, Generation, Owner, decode
from headrace.serve.subscriptions.errors import CursorOld, TooMuchSince
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.source import Source
from headrace.serve.subscriptions.step import Change, Step
from headrace.views.position import NO_BATCH
from headrace.views.staleness import retention_of

__all__ = ["backfill"]

_BATCHES_MAX = 20_000

_Noted = tuple[Batch, int]
"""With where the record behind it may be."""


def backfill(
    source: Source, begin: Place, place: Place, known_ms: int, room_bytes: int, now_ms: int
) -> list[Step]:
    """From ``place``, which somebody was at when it was ``known_ms``, to ``begin``, where what is remembered begins.
    Blocks.
    """
    if source.is_realtime:
        raise CursorOld(
            "rows of a flow in real time are told by what came before them, and that is forgotten"
        )
    _expect_kept(source, place, min(known_ms, now_ms), now_ms)
    budget = _Budget(room_bytes)
    steps = (_batches if source.progress else _offsets)(source, begin, place, budget)
    budget.check(sum(one.size_bytes for one in steps))
    return steps


class _Budget:
    """Raises once there is more than there is room for."""

    def __init__(self, room_bytes: int) -> None:
        self._room = room_bytes
        self._read = 0

    def reading(self, messages: Iterator[Message]) -> Iterator[Message]:
        for one in messages:
            self._read += len(one)
            self.check(self._read)
            yield one

    def check(self, size: int) -> None:
        if size > self._room:
            raise TooMuchSince(
                f"more has changed since than {self._room} bytes, and that is what can be told again"
            )


def _expect_kept(source: Source, place: Place, known_ms: int, now_ms: int) -> None:
    """Nothing that came behind the place may be gone from the log: not a record, and no deletion."""
    epoch = source.epoch
    retention = retention_of(source.cluster, epoch.topic)
    starts = source.cluster.starts(epoch.topic)
    for number, at in place.offsets.items():
        if at < starts.get(number, 0):
            raise CursorOld(
                f"partition {number} of the log begins at {starts[number]}, and the cursor is at {at}"
            )
    position = msgspec.structs.replace(epoch.position(place), stored_ms=known_ms, complete_ms=known_ms)
    why = retention.why_never_there(position) or retention.why_missed(position, starts, now_ms)
    if why is not None:
        raise CursorOld(why)


def _offsets(source: Source, begin: Place, place: Place, budget: _Budget) -> list[Step]:
    """Any offsets are a place in a topic that no flow writes: what is between is one step."""
    below = place.least(begin)
    ranges = {number: (at, begin.offsets[number]) for number, at in below.offsets.items()}
    messages = budget.reading(read(source.cluster, source.epoch.topic, ranges))
    found = source.decoding.apart().changes(sorted(messages, key=lambda one: (one.partition(), one.offset())))
    return [Step(below, begin, found)] if below != begin else []


def _batches(source: Source, begin: Place, place: Place, budget: _Budget) -> list[Step]:
    if place.progress_offset < 1 or place.progress_offset > begin.progress_offset:
        raise _untrue()
    ranges = {0: (place.progress_offset - 1, begin.progress_offset)}
    found = [
        (decode(one.value() or b"", where=f"{source.progress} at offset {one.offset()}"), one.offset() or 0)
        for one in budget.reading(read(source.cluster, source.progress, ranges))
    ]
    records = [(record, offset) for record, offset in found if not isinstance(record, Owner)]
    if not records or not _is_at(records[0][0], source, place):
        raise _untrue()
    batches = [(one, offset + 1) for one, offset in records[1:] if isinstance(one, Batch)]
    generation = source.epoch.generation
    if len(batches) != len(records) - 1 or any(one.generation != generation for one, _ in batches):
        raise _untrue()
    if len(batches) > _BATCHES_MAX:
        raise CursorOld(f"{len(batches)} batches came since, and {_BATCHES_MAX} can be told again")
    return _steps(source, begin, place, batches, _rows(source, batches, budget))


def _is_at(record: Batch | Generation, source: Source, place: Place) -> bool:
    """Whether the place is the end of this batch, or the begin of this generation."""
    if record.generation != source.epoch.generation:
        return False
    if isinstance(record, Generation):
        return place.batch == NO_BATCH
    ends = record.outputs.get(source.epoch.topic, {})
    return record.batch == place.batch and all(
        place.offsets.get(int(number)) == end for number, (start, end) in ends.items() if start < end
    )


def _rows(source: Source, batches: list[_Noted], budget: _Budget) -> dict[int, list[Change]]:
    """Of all of these batches, by partition, in order; one read for all."""
    topic = source.epoch.topic
    hull: dict[int, tuple[int, int]] = {}
    for batch, _ in batches:
        for number, (start, end) in batch.outputs.get(topic, {}).items():
            if start < end:
                known = hull.get(int(number), (start, end))
                hull[int(number)] = (min(start, known[0]), max(end, known[1]))
    found: dict[int, list[Change]] = defaultdict(list)
    for one in source.decoding.apart().changes(budget.reading(read(source.cluster, topic, hull))):
        found[one.partition].append(one)
    return found


def _steps(
    source: Source, begin: Place, place: Place, batches: list[_Noted], rows: dict[int, list[Change]]
) -> list[Step]:
    steps: list[Step] = []
    at, taken = place, dict.fromkeys(rows, 0)
    for batch, progress_offset in batches:
        offsets = dict(at.offsets)
        changes: list[Change] = []
        for number, (start, end) in sorted(
            (int(one), bounds) for one, bounds in batch.outputs.get(source.epoch.topic, {}).items()
        ):
            if start >= end:
                continue
            if start < offsets.get(number, 0):
                raise _untrue()
            offsets[number] = end
            held = rows.get(number, [])
            while taken.get(number, 0) < len(held) and held[taken[number]].offset < end:
                if held[taken[number]].offset >= start:
                    changes.append(held[taken[number]])
                taken[number] += 1
        after = Place(offsets, batch.batch, progress_offset, by_batch=True)
        steps.append(Step(at, after, changes))
        at = after
    if at != begin:
        raise _untrue()
    return steps


def _untrue() -> CursorOld:
    return CursorOld("the log has no such place")
