"""Reads a topic that a flow writes in real time: returns the rows that have arrived, without repeats.

The flow writes each row at least once. A row has a header with its *source*: the partition and the offset of the input
record from which it was derived. Within one output partition, the source offsets of one input partition increase. A row
whose source offset does not increase is a repeat and is skipped. Otherwise it would replace a newer row of its key with
an older one. A record without a source was not written by the flow.

The same consumer also reads the flow's progress topic. The progress record of a batch arrives some time after its rows.
The batch is complete when all rows below the output offsets in its progress record are polled. ``poll`` then returns
the batch with the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

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
from headrace.model.progress import Batch, Sources, decode, source_key, source_of

__all__ = ["RealtimeChangelog"]

_BATCHES_MAX = 2_000


class RealtimeChangelog:
    def __init__(
        self,
        cluster: Cluster,
        progress: FlowProgress,
        topic: str,
        offsets: Mapping[int, int],
        sources: Mapping[str, int],
        *,
        max_rows: int = 10_000,
    ) -> None:
        self._progress = progress.topic
        self._progress_offset = progress.offset
        self._topic = topic
        self._generation = progress.generation
        self._max_rows = max_rows
        self._polled = dict(offsets)
        self._passed = dict(offsets)
        self._sources: Sources = dict(sources)
        self._batches: deque[tuple[Batch, int]] = deque()
        """Incomplete batches, each with the offset after its progress record."""
        self._ended: set[int] = set()
        self._progress_ended = False
        self._superseded = False
        self._consumer = cluster.consumer(CONSUMER_CONFIG)
        self._consumer.assign(
            [
                TopicPartition(progress.topic, 0, progress.offset),
                *(TopicPartition(topic, number, offset) for number, offset in offsets.items()),
            ]
        )

    def poll(self, timeout_s: float) -> ChangeBatch | None:
        if self._superseded and self.at_end():
            raise SourceChanged(f"{self._progress} has a newer generation than {self._generation}")
        rows: list[Message] = []
        before, foreign, repeats = sum(self._polled.values()), 0, 0
        for message in take(self._consumer, self._max_rows, timeout_s):
            if message.topic() == self._progress:
                self._add_progress(message)
                continue
            if not self._pass(message):
                continue
            is_new = self._is_new(message)
            if is_new:
                rows.append(message)
            elif is_new is None:
                foreign += 1
            else:
                repeats += 1
        batch = self._last_complete()
        if batch is None and sum(self._polled.values()) == before:
            return None
        return ChangeBatch(
            rows, dict(self._polled), batch, self._progress_offset, foreign, dict(self._sources), repeats
        )

    def _add_progress(self, message: Message) -> None:
        if not is_record(message):
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
                # Output offsets never decrease, so a later batch is complete only if this batch is complete.
                self._batches.popleft()

    def _pass(self, message: Message) -> bool:
        """Advance the offsets past the message. Return False for an end-of-partition event."""
        number, offset = message.partition() or 0, message.offset() or 0
        if not is_record(message):
            self._passed[number] = max(offset, self._passed[number])
            self._ended.add(number)
            return False
        self._polled[number] = self._passed[number] = offset + 1
        self._ended.discard(number)
        return True

    def _is_new(self, message: Message) -> bool | None:
        """Return True for a new row, False for a repeat, and None for a record that the flow did not write."""
        headers: Any = message.headers()
        source = source_of(headers)
        if source is None:
            return None
        partition_pair = source_key(message.partition() or 0, source[0])
        if source[1] <= self._sources.get(partition_pair, -1):
            return False
        self._sources[partition_pair] = source[1]
        return True

    def _last_complete(self) -> Batch | None:
        last = None
        while self._batches and self._is_complete(self._batches[0][0]):
            last, self._progress_offset = self._batches.popleft()
        return last

    def _is_complete(self, batch: Batch) -> bool:
        ends = batch.outputs.get(self._topic, {})
        return all(self._passed.get(int(number), 0) >= end for number, (_, end) in ends.items())

    # Progress

    def at_end(self) -> bool:
        return self._progress_ended and not self._batches and len(self._ended) == len(self._polled)

    def is_exact(self) -> bool:
        """Always true: ``headrace.follow.origin`` refuses compacted topics of real-time flows."""
        return True

    def passed(self) -> dict[int, int]:
        return self._passed

    def lag(self) -> int:
        return remaining_offsets(self._consumer, self._topic, self._passed, self._ended)

    def close(self) -> None:
        self._consumer.close()
