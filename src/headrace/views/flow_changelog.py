"""A topic that a flow writes, as a changelog: whole batches, as the flow's progress records tell them.

One consumer reads the progress and all partitions of the output. A record that is in no batch's range is none of the
flow's, and is left out. Small batches are handed over together, never a part of one.

Where the topic is compacted, rows of a batch may be gone because a later batch wrote their keys again. The batch says
how many rows it has, so that is noticed. The rows that were taken then come to a state that was once all batches are
taken that were committed by that time.

Memory is bounded by one batch, which the flow bounds, and by what is read ahead of it: a partition that runs too far
ahead of the batch that is next is paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from confluent_kafka import Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.reading import take
from headrace.model.progress import Batch, decode
from headrace.views.piece import CONSUMER, LookAgain, Piece, expect_readable, high_watermark

__all__ = ["FlowChangelog"]

_AT_ONCE = 10_000
_AHEAD_BYTES = 32 << 20
_AHEAD_BATCHES = 2_000


class FlowChangelog:
    def __init__(
        self,
        cluster: Cluster,
        *,
        progress: str,
        progress_offset: int,
        generation: int,
        topic: str,
        offsets: Mapping[int, int],
        max_rows: int = 10_000,
        ahead_bytes: int = _AHEAD_BYTES,
    ) -> None:
        self._progress = progress
        self._topic = topic
        self._generation = generation
        self._max_rows = max_rows
        self._ahead_bytes = ahead_bytes
        self._taken = dict(offsets)
        self._passed = dict(offsets)
        self._held: dict[int, deque[Message]] = {number: deque() for number in offsets}
        self._held_bytes = 0
        self._batches: deque[tuple[Batch, int]] = deque()
        """With where the record behind it is."""
        self._paused: set[tuple[str, int]] = set()
        self._progress_passed = progress_offset
        self._progress_ended = False
        self._superseded = False
        self._has_gaps = False
        self._exact_at: int | None = None
        """Behind which offset of the progress a topic with gaps is exact; None until the log was asked."""
        self._cluster = cluster
        self._consumer = cluster.consumer(CONSUMER)
        self._consumer.assign(
            [
                TopicPartition(progress, 0, progress_offset),
                *(TopicPartition(topic, number, at) for number, at in offsets.items()),
            ]
        )

    def take(self, timeout_s: float) -> Piece | None:
        if self._superseded and not self._batches:
            raise LookAgain(f"{self._progress}: there is a newer generation than {self._generation}")
        waiting = bool(self._batches) and self._is_whole(self._batches[0][0])
        for message in take(self._consumer, _AT_ONCE, 0 if waiting else timeout_s):
            if message.topic() == self._progress:
                self._note_progress(message)
            else:
                self._note_row(message)
        self._throttle()
        return self._next()

    def _note_progress(self, message: Message) -> None:
        offset = message.offset() or 0
        if not expect_readable(message):
            self._progress_passed = max(offset, self._progress_passed)
            self._progress_ended = True
            return
        self._progress_ended = False
        self._progress_passed = offset + 1
        record = decode(message.value() or b"", where=f"{self._progress} at offset {offset}")
        if record.generation > self._generation:
            self._superseded = True
        elif isinstance(record, Batch) and record.generation == self._generation:
            self._expect_partitions(record)
            self._batches.append((record, offset + 1))

    def _expect_partitions(self, batch: Batch) -> None:
        if any(number not in self._held for number in _ranges(batch, self._topic)):
            raise LookAgain(f"{self._topic} has more partitions than before")

    def _note_row(self, message: Message) -> None:
        number, offset = message.partition() or 0, message.offset() or 0
        if not expect_readable(message):
            self._passed[number] = max(offset, self._passed[number])
        elif offset >= self._passed[number]:
            self._held[number].append(message)
            self._held_bytes += len(message)
            self._passed[number] = offset + 1

    # What is whole

    def _is_whole(self, batch: Batch) -> bool:
        return all(self._passed[one] >= end for one, (_, end) in _ranges(batch, self._topic).items())

    def _next(self) -> Piece | None:
        messages: list[Message] = []
        last, progress_offset, foreign = None, 0, 0
        while self._batches and len(messages) < self._max_rows and self._is_whole(self._batches[0][0]):
            last, progress_offset = self._batches.popleft()
            before = len(messages)
            for number, (begin, end) in sorted(_ranges(last, self._topic).items()):
                messages += self._rows(number, begin, end)
                self._taken[number] = max(end, self._taken[number])
            rows = len(messages) - before
            foreign += max(0, rows - last.rows_out)
            if rows < last.rows_out:
                self._has_gaps, self._exact_at = True, None
        return None if last is None else Piece(messages, dict(self._taken), last, progress_offset, foreign)

    def _rows(self, number: int, begin: int, end: int) -> list[Message]:
        held, rows = self._held[number], []
        while held and (held[0].offset() or 0) < end:
            message = held.popleft()
            self._held_bytes -= len(message)
            if (message.offset() or 0) >= begin:
                rows.append(message)
        return rows

    # What is read ahead

    def _throttle(self) -> None:
        wanted: set[tuple[str, int]] = set()
        if len(self._batches) > _AHEAD_BATCHES:
            wanted.add((self._progress, 0))
        too_much = self._ahead_bytes // 2 if self._paused else self._ahead_bytes
        if self._held_bytes > too_much:
            wanted.update((self._topic, one) for one in self._held if not self._is_next(one))
        if wanted != self._paused:
            self._consumer.pause([TopicPartition(*one) for one in wanted - self._paused])
            self._consumer.resume([TopicPartition(*one) for one in self._paused - wanted])
            self._paused = wanted

    def _is_next(self, number: int) -> bool:
        """Whether the next batch waits for more of the partition."""
        if not self._batches:
            return False
        _, end = _ranges(self._batches[0][0], self._topic).get(number, (0, 0))
        return self._passed[number] < end

    # How far

    def at_end(self) -> bool:
        return self._progress_ended and not self._batches and not self._superseded

    def is_exact(self) -> bool:
        if not self._has_gaps:
            return True
        if self._exact_at is None:
            self._exact_at = self._cluster.ends(self._progress)[0]
        taken = self._batches[0][1] - 1 if self._batches else self._progress_passed
        self._has_gaps = taken < self._exact_at
        return not self._has_gaps

    def passed(self) -> dict[int, int]:
        return self._passed if self.at_end() and not any(self._held.values()) else self._taken

    def lag(self) -> int:
        if self.at_end():
            return 0
        ahead = sum(map(len, self._held.values()))
        return ahead + sum(
            max(0, high_watermark(self._consumer, self._topic, one) - at) for one, at in self._passed.items()
        )

    def close(self) -> None:
        self._consumer.close()


def _ranges(batch: Batch, topic: str) -> dict[int, tuple[int, int]]:
    found = batch.outputs.get(topic, {})
    return {int(number): bounds for number, bounds in found.items() if bounds[0] < bounds[1]}
