"""Reads a topic that a flow writes, in the batches that the flow's progress records describe.

One consumer reads the progress topic and all partitions of the output topic. A record outside the offsets of all
batches was not written by the flow and is skipped. Several small batches can be returned together. A batch is never
split.

In a compacted topic, rows of a batch may be missing because a later batch wrote their keys again. This is detected,
because the progress record contains the number of rows. Then the polled rows may not form a state that the topic ever
had. They form such an exact state again when all batches are polled that were committed when the missing rows were
detected.

Memory is limited to one batch, whose size the flow limits, and the records read ahead of it. A partition that is too
far ahead of the next batch is paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from confluent_kafka import Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.records import take
from headrace.follow.changelog import (
    CONSUMER_CONFIG,
    ChangeBatch,
    FlowProgress,
    SourceChanged,
    is_record,
    remaining_offsets,
)
from headrace.model.progress import Batch, Generation, decode

__all__ = ["FlowChangelog"]

_POLL_MESSAGES_MAX = 10_000
_AHEAD_BYTES = 32 << 20
_AHEAD_BATCHES = 2_000


class FlowChangelog:
    def __init__(
        self,
        cluster: Cluster,
        progress: FlowProgress,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_rows: int = 10_000,
        ahead_bytes: int = _AHEAD_BYTES,
    ) -> None:
        self._progress = progress.topic
        self._topic = topic
        self._generation = progress.generation
        self._max_rows = max_rows
        self._ahead_bytes = ahead_bytes
        self._polled = dict(offsets)
        self._passed = dict(offsets)
        self._held: dict[int, deque[Message]] = {number: deque() for number in offsets}
        self._held_bytes = 0
        self._batches: deque[tuple[Batch, int]] = deque()
        """Pending batches, each with the offset after its progress record."""
        self._paused: set[tuple[str, int]] = set()
        self._progress_passed = progress.offset
        self._progress_ended = False
        self._superseded = False
        self._has_gaps = False
        self._exact_at: int | None = None
        """If the topic has gaps: when all progress records before this offset are polled, the rows form an exact state
        again. None until the offset is known.
        """
        self._cluster = cluster
        self._consumer = cluster.consumer(CONSUMER_CONFIG)
        self._consumer.assign(
            [
                TopicPartition(progress.topic, 0, progress.offset),
                *(TopicPartition(topic, number, offset) for number, offset in offsets.items()),
            ]
        )

    def poll(self, timeout_s: float) -> ChangeBatch | None:
        if self._superseded and not self._batches:
            raise SourceChanged(f"generation {self._generation} ended or continues in another topic")
        is_ready = bool(self._batches) and self._is_complete(self._batches[0][0])
        for message in take(self._consumer, _POLL_MESSAGES_MAX, 0 if is_ready else timeout_s):
            if message.topic() == self._progress:
                self._add_progress(message)
            else:
                self._add_row(message)
        self._throttle()
        return self._next()

    def _add_progress(self, message: Message) -> None:
        offset = message.offset() or 0
        if not is_record(message):
            self._progress_passed = max(offset, self._progress_passed)
            self._progress_ended = True
            return
        self._progress_ended = False
        self._progress_passed = offset + 1
        record = decode(message.value() or b"", where=f"{self._progress} at offset {offset}")
        if record.generation > self._generation or (isinstance(record, Generation) and record.continues >= 0):
            # Earlier releases wrote all generations to one progress topic. A generation continues in another topic
            # after another one replaced it.
            self._superseded = True
        elif isinstance(record, Batch) and record.generation == self._generation:
            self._check_partitions(record)
            self._batches.append((record, offset + 1))

    def _check_partitions(self, batch: Batch) -> None:
        if any(number not in self._held for number in _ranges(batch, self._topic)):
            raise SourceChanged(f"partitions were added to topic {self._topic}")

    def _add_row(self, message: Message) -> None:
        number, offset = message.partition() or 0, message.offset() or 0
        if not is_record(message):
            self._passed[number] = max(offset, self._passed[number])
        elif offset >= self._passed[number]:
            self._held[number].append(message)
            self._held_bytes += len(message)
            self._passed[number] = offset + 1

    # Complete batches

    def _is_complete(self, batch: Batch) -> bool:
        return all(self._passed[number] >= end for number, (_, end) in _ranges(batch, self._topic).items())

    def _next(self) -> ChangeBatch | None:
        messages: list[Message] = []
        last, progress_offset, foreign = None, 0, 0
        while self._batches and len(messages) < self._max_rows and self._is_complete(self._batches[0][0]):
            last, progress_offset = self._batches.popleft()
            before = len(messages)
            for number, (start, end) in sorted(_ranges(last, self._topic).items()):
                messages += self._pop_held(number, start, end)
                self._polled[number] = max(end, self._polled[number])
            rows = len(messages) - before
            foreign += max(0, rows - last.rows_out)
            if rows < last.rows_out:
                self._has_gaps, self._exact_at = True, None
        if last is None:
            return None
        return ChangeBatch(messages, dict(self._polled), last, progress_offset, foreign)

    def _pop_held(self, number: int, start: int, end: int) -> list[Message]:
        held, rows = self._held[number], []
        while held and (held[0].offset() or 0) < end:
            message = held.popleft()
            self._held_bytes -= len(message)
            if (message.offset() or 0) >= start:
                rows.append(message)
        return rows

    # Reading ahead

    def _throttle(self) -> None:
        to_pause: set[tuple[str, int]] = set()
        if len(self._batches) > _AHEAD_BATCHES:
            to_pause.add((self._progress, 0))
        limit = self._ahead_bytes // 2 if self._paused else self._ahead_bytes
        if self._held_bytes > limit:
            to_pause.update((self._topic, number) for number in self._held if not self._is_needed(number))
        if to_pause != self._paused:
            self._consumer.pause([TopicPartition(*partition) for partition in to_pause - self._paused])
            self._consumer.resume([TopicPartition(*partition) for partition in self._paused - to_pause])
            self._paused = to_pause

    def _is_needed(self, number: int) -> bool:
        """Whether the next batch needs more records of this partition."""
        if not self._batches:
            return False
        _, end = _ranges(self._batches[0][0], self._topic).get(number, (0, 0))
        return self._passed[number] < end

    # Progress

    def at_end(self) -> bool:
        return self._progress_ended and not self._batches and not self._superseded

    def is_exact(self) -> bool:
        if not self._has_gaps:
            return True
        if self._exact_at is None:
            self._exact_at = self._cluster.ends(self._progress)[0]
        polled = self._batches[0][1] - 1 if self._batches else self._progress_passed
        self._has_gaps = polled < self._exact_at
        return not self._has_gaps

    def passed(self) -> dict[int, int]:
        return self._passed if self.at_end() and not any(self._held.values()) else self._polled

    def lag(self) -> int:
        if self.at_end():
            return 0
        held = sum(map(len, self._held.values()))
        return held + remaining_offsets(self._consumer, self._topic, self._passed, set())

    def close(self) -> None:
        self._consumer.close()


def _ranges(batch: Batch, topic: str) -> dict[int, tuple[int, int]]:
    """Return the start and end offset of the batch in each partition of the topic, without empty ranges."""
    ranges = batch.outputs.get(topic, {})
    return {int(number): bounds for number, bounds in ranges.items() if bounds[0] < bounds[1]}
