"""Rereads old steps from the log, for a subscriber whose cursor is older than the history in memory.

A step is the changes between two positions. A client can forge a cursor, and the steps that are read for a cursor are
then sent to all subscribers. So this module checks every position in the cursor against the log before it uses the
position. It reads a limited amount. A cursor that needs more has expired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec
from confluent_kafka import Message

from headrace.client.records import read
from headrace.follow.rebuild import retention_of
from headrace.model.progress import Batch, Generation, Owner, decode
from headrace.serve.errors import CursorExpired, TooManyMissedChanges
from headrace.serve.subscribe.log_position import Change, LogPosition, Step
from headrace.serve.subscribe.source import Source
from headrace.stores.position import NO_BATCH

__all__ = ["backfill"]

_BATCHES_MAX = 20_000

_BatchAt = tuple[Batch, int]
"""A batch and the offset after its progress record."""


def backfill(
    source: Source, begin: LogPosition, log_position: LogPosition, known_ms: int, free_bytes: int, now_ms: int
) -> list[Step]:
    """Return the steps from ``log_position`` to ``begin``, the start of the history. This blocks the thread.

    The subscriber was at ``log_position`` at the time ``known_ms``. All steps together may have at most ``free_bytes``.
    """
    if source.is_realtime:
        raise CursorExpired(
            "a real-time flow needs the rows before the cursor, which the server no longer has"
        )
    _check_retained(source, log_position, min(known_ms, now_ms), now_ms)
    budget = _Budget(free_bytes)
    steps = (_batch_steps if source.progress else _single_step)(source, begin, log_position, budget)
    budget.check(sum(step.size_bytes for step in steps))
    return steps


class _Budget:
    """Raises as soon as the records that were read have more bytes than are free in the history."""

    def __init__(self, free_bytes: int) -> None:
        self._free_bytes = free_bytes
        self._read = 0

    def count(self, messages: Iterator[Message]) -> Iterator[Message]:
        for message in messages:
            self._read += len(message)
            self.check(self._read)
            yield message

    def check(self, size: int) -> None:
        if size > self._free_bytes:
            raise TooManyMissedChanges(
                f"the changes after the cursor have more than {self._free_bytes} bytes, and the history has no space"
                " for more"
            )


def _check_retained(source: Source, log_position: LogPosition, known_ms: int, now_ms: int) -> None:
    """Raise if the log has deleted a record or a tombstone after the position."""
    epoch = source.epoch
    retention = retention_of(source.cluster, epoch.topic)
    starts = source.cluster.starts(epoch.topic)
    for number, at in log_position.offsets.items():
        if at < starts.get(number, 0):
            raise CursorExpired(
                f"partition {number} of the log now starts at offset {starts[number]}, but the cursor is at offset {at}"
            )
    position = msgspec.structs.replace(epoch.position(log_position), stored_ms=known_ms, complete_ms=known_ms)
    why = retention.restore_reason(position) or retention.missed_tombstone_reason(position, starts, now_ms)
    if why is not None:
        raise CursorExpired(why)


def _single_step(
    source: Source, begin: LogPosition, log_position: LogPosition, budget: _Budget
) -> list[Step]:
    """Return one step with all changes. No flow writes this topic, so any offsets are a valid position."""
    below = log_position.minimum(begin)
    ranges = {number: (at, begin.offsets[number]) for number, at in below.offsets.items()}
    messages = budget.count(read(source.cluster, source.epoch.topic, ranges))
    changes = source.decoder.copy().changes(
        sorted(messages, key=lambda message: (message.partition(), message.offset()))
    )
    return [Step(below, begin, changes)] if below != begin else []


def _batch_steps(
    source: Source, begin: LogPosition, log_position: LogPosition, budget: _Budget
) -> list[Step]:
    if log_position.progress_offset < 1 or log_position.progress_offset > begin.progress_offset:
        raise _unknown_position()
    ranges = {0: (log_position.progress_offset - 1, begin.progress_offset)}
    progress = [
        (_decode(source, message), message.offset() or 0)
        for message in budget.count(read(source.cluster, source.progress, ranges))
    ]
    records = [(record, offset) for record, offset in progress if not isinstance(record, Owner)]
    if not records or not _is_at(records[0][0], source, log_position):
        raise _unknown_position()
    batches = [(record, offset + 1) for record, offset in records[1:] if isinstance(record, Batch)]
    generation = source.epoch.generation
    if len(batches) != len(records) - 1 or any(batch.generation != generation for batch, _ in batches):
        raise _unknown_position()
    if len(batches) > _BATCHES_MAX:
        raise CursorExpired(f"{len(batches)} batches were written after the cursor (limit {_BATCHES_MAX})")
    return _steps(source, begin, log_position, batches, _rows(source, batches, budget))


def _decode(source: Source, message: Message) -> Batch | Generation | Owner:
    return decode(message.value() or b"", where=f"{source.progress} at offset {message.offset()}")


def _is_at(record: Batch | Generation, source: Source, log_position: LogPosition) -> bool:
    """Return whether the position is the end of this batch, or the start of this generation."""
    if record.generation != source.epoch.generation:
        return False
    if isinstance(record, Generation):
        return log_position.batch == NO_BATCH
    ends = record.outputs.get(source.epoch.topic, {})
    return record.batch == log_position.batch and all(
        log_position.offsets.get(int(number)) == end for number, (start, end) in ends.items() if start < end
    )


def _rows(source: Source, batches: list[_BatchAt], budget: _Budget) -> dict[int, list[Change]]:
    """Read the changes of all batches at once. Return them by partition, in the order of the log."""
    topic = source.epoch.topic
    ranges: dict[int, tuple[int, int]] = {}
    for batch, _ in batches:
        for number, (start, end) in batch.outputs.get(topic, {}).items():
            if start < end:
                so_far = ranges.get(int(number), (start, end))
                ranges[int(number)] = (min(start, so_far[0]), max(end, so_far[1]))
    rows: dict[int, list[Change]] = defaultdict(list)
    for change in source.decoder.copy().changes(budget.count(read(source.cluster, topic, ranges))):
        rows[change.partition].append(change)
    return rows


def _steps(
    source: Source,
    begin: LogPosition,
    log_position: LogPosition,
    batches: list[_BatchAt],
    rows: dict[int, list[Change]],
) -> list[Step]:
    steps: list[Step] = []
    at, used_counts = log_position, dict.fromkeys(rows, 0)
    for batch, progress_offset in batches:
        offsets = dict(at.offsets)
        changes: list[Change] = []
        for number, (start, end) in sorted(
            (int(number), bounds) for number, bounds in batch.outputs.get(source.epoch.topic, {}).items()
        ):
            if start >= end:
                continue
            if start < offsets.get(number, 0):
                raise _unknown_position()
            offsets[number] = end
            partition_rows = rows.get(number, [])
            while (
                used_counts.get(number, 0) < len(partition_rows)
                and partition_rows[used_counts[number]].offset < end
            ):
                if partition_rows[used_counts[number]].offset >= start:
                    changes.append(partition_rows[used_counts[number]])
                used_counts[number] += 1
        after = LogPosition(offsets, batch.batch, progress_offset, by_batch=True)
        steps.append(Step(at, after, changes))
        at = after
    if at != begin:
        raise _unknown_position()
    return steps


def _unknown_position() -> CursorExpired:
    return CursorExpired("the log does not have the cursor's position")
