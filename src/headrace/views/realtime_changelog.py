"""A topic that a flow writes in real time, as a changelog: whatever has arrived, without what had arrived before.

The flow writes at least once. A row is known by its source, the record of the input that it was made of, and of the
rows from one partition of the input each is above the last: one that is not is a repeat, and is left out. A repeat that
was applied would put an older row of its key in the place of a newer one. A record without a source is none of the
flow's.

One consumer reads the flow's progress too. A batch's record comes some time after its rows; once everything below the
output offsets that it names has been taken, the batch is whole, and the piece says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.reading import take
from headrace.model.progress import Batch, decode
from headrace.model.source import Sources, place_in, source_of
from headrace.views.piece import CONSUMER, LookAgain, Piece, expect_readable, high_watermark

__all__ = ["RealtimeChangelog"]

_BATCHES_MAX = 2_000


class RealtimeChangelog:
    def __init__(
        self,
        cluster: Cluster,
        *,
        progress: str,
        progress_offset: int,
        generation: int,
        topic: str,
        offsets: Mapping[int, int],
        sources: Mapping[str, int],
        max_rows: int = 10_000,
    ) -> None:
        self._progress = progress
        self._progress_offset = progress_offset
        self._topic = topic
        self._generation = generation
        self._max_rows = max_rows
        self._taken = dict(offsets)
        self._passed = dict(offsets)
        self._sources: Sources = dict(sources)
        self._batches: deque[tuple[Batch, int]] = deque()
        """That are not whole yet, with where the record behind each is."""
        self._ended: set[int] = set()
        self._progress_ended = False
        self._superseded = False
        self._consumer = cluster.consumer(CONSUMER)
        self._consumer.assign(
            [
                TopicPartition(progress, 0, progress_offset),
                *(TopicPartition(topic, number, at) for number, at in offsets.items()),
            ]
        )

    def take(self, timeout_s: float) -> Piece | None:
        if self._superseded and self.at_end():
            raise LookAgain(f"{self._progress}: there is a newer generation than {self._generation}")
        rows: list[Message] = []
        before, foreign, repeats = sum(self._taken.values()), 0, 0
        for message in take(self._consumer, self._max_rows, timeout_s):
            if message.topic() == self._progress:
                self._note_progress(message)
                continue
            if not self._pass(message):
                continue
            new = self._is_new(message)
            if new:
                rows.append(message)
            elif new is None:
                foreign += 1
            else:
                repeats += 1
        batch = self._whole()
        if batch is None and sum(self._taken.values()) == before:
            return None
        return Piece(
            rows, dict(self._taken), batch, self._progress_offset, foreign, dict(self._sources), repeats
        )

    def _note_progress(self, message: Message) -> None:
        if not expect_readable(message):
            self._progress_ended = True
            return
        self._progress_ended = False
        offset = message.offset() or 0
        record = decode(message.value() or b"", where=f"{self._progress} at offset {offset}")
        if record.generation > self._generation:
            self._superseded = True
        elif isinstance(record, Batch) and record.generation == self._generation:
            self._batches.append((record, offset + 1))
            if len(self._batches) > _BATCHES_MAX:
                # A later one names no less, and the rows of both must have been taken for it to be whole.
                self._batches.popleft()

    def _pass(self, message: Message) -> bool:
        """Whether it is a record."""
        number, offset = message.partition() or 0, message.offset() or 0
        if not expect_readable(message):
            self._passed[number] = max(offset, self._passed[number])
            self._ended.add(number)
            return False
        self._taken[number] = self._passed[number] = offset + 1
        self._ended.discard(number)
        return True

    def _is_new(self, message: Message) -> bool | None:
        """None for a record that the flow has not written."""
        headers: Any = message.headers()
        source = source_of(headers)
        if source is None:
            return None
        place = place_in(message.partition() or 0, source[0])
        if source[1] <= self._sources.get(place, -1):
            return False
        self._sources[place] = source[1]
        return True

    def _whole(self) -> Batch | None:
        last = None
        while self._batches and self._is_whole(self._batches[0][0]):
            last, self._progress_offset = self._batches.popleft()
        return last

    def _is_whole(self, batch: Batch) -> bool:
        ends = batch.outputs.get(self._topic, {})
        return all(self._passed.get(int(number), 0) >= end for number, (_, end) in ends.items())

    # How far

    def at_end(self) -> bool:
        return self._progress_ended and not self._batches and len(self._ended) == len(self._taken)

    def is_exact(self) -> bool:
        """A topic that is written in real time is not compacted: ``headrace.views.origin`` refuses it."""
        return True

    def passed(self) -> dict[int, int]:
        return self._passed

    def lag(self) -> int:
        behind = [number for number in self._passed if number not in self._ended]
        return sum(
            max(0, high_watermark(self._consumer, self._topic, one) - self._passed[one]) for one in behind
        )

    def close(self) -> None:
        self._consumer.close()
