"""Reads a topic that no flow writes: returns the records that have arrived, in bounded batches.

In a compacted topic, a record may be missing because a newer record of its key exists. This leaves a gap in the
offsets. Then the polled rows may not form a state that the topic ever had. They form such an exact state again when all
records are polled that the log had when the gap was found.

The marker at the end of a transaction also leaves a gap of one offset. Records of the last second are not compacted
yet. So a gap of one offset among those records counts as a marker. Otherwise the rows of a topic with constant
transactions would never be exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.records import take
from headrace.client.tombstones import Tombstones
from headrace.follow.changelog import CONSUMER_CONFIG, ChangeBatch, is_record, remaining_offsets

__all__ = ["TopicChangelog"]

_POLICY_EVERY_S = 1.0
_RECENT_S = 1.0


class TopicChangelog:
    def __init__(
        self, cluster: Cluster, topic: str, offsets: Mapping[int, int], *, max_rows: int = 10_000
    ) -> None:
        self._max_rows = max_rows
        self._cluster = cluster
        self._topic = topic
        self._polled = dict(offsets)
        self._passed = dict(offsets)
        self._ended: set[int] = set()
        self._exact_at: dict[int, int | None] = {}
        """For each partition with gaps, the offset from which the rows are exact again; None until it is known."""
        self._ends_read = 0.0
        self._is_compacted = False
        self._policy_read = -_POLICY_EVERY_S
        self._consumer = cluster.consumer(CONSUMER_CONFIG)
        self._consumer.assign([TopicPartition(topic, number, offset) for number, offset in offsets.items()])

    def poll(self, timeout_s: float) -> ChangeBatch | None:
        messages: list[Message] = []
        passed = 0
        for message in take(self._consumer, self._max_rows, timeout_s):
            if message.error() is None:
                messages.append(message)
            elif not is_record(message):
                # This event arrives in order: after the records below the end, before later records.
                self._pass(messages[passed:])
                passed = len(messages)
                number, offset = message.partition() or 0, message.offset() or 0
                self._passed[number] = max(offset, self._passed[number])
                self._ended.add(number)
                self._exact_at.pop(number, None)
        self._pass(messages[passed:])
        return ChangeBatch(messages, dict(self._polled)) if messages else None

    def _pass(self, messages: Sequence[Message]) -> None:
        """Advance the offsets past the last record of each partition. Search backwards, because these records are at
        the end.
        """
        before, missing = dict(self._passed), -len(messages)
        seen_partitions: set[int] = set()
        for message in reversed(messages):
            number = message.partition() or 0
            if number not in seen_partitions:
                seen_partitions.add(number)
                offset = (message.offset() or 0) + 1
                if offset > self._polled[number]:
                    missing += offset - before[number]
                    self._polled[number] = self._passed[number] = offset
                    self._ended.discard(number)
                if len(seen_partitions) == len(self._polled):
                    break
        if missing > 0 and self._may_be_compacted():
            self._add_gaps(messages, before)

    def _add_gaps(self, messages: Sequence[Message], before: dict[int, int]) -> None:
        widest: dict[int, int] = {}
        for message in messages:
            number, offset = message.partition() or 0, message.offset() or 0
            if offset > before[number]:
                widest[number] = max(offset - before[number], widest.get(number, 0))
            before[number] = offset + 1
        is_recent = time.monotonic() - self._ends_read < _RECENT_S
        for number, gap in widest.items():
            if gap > 1 or not is_recent or number not in self._exact_at:
                self._exact_at[number] = None

    def _may_be_compacted(self) -> bool:
        """Whether the topic is compacted or was compacted earlier. Reads the cleanup policy at most once per second."""
        if not self._is_compacted and time.monotonic() - self._policy_read >= _POLICY_EVERY_S:
            self._policy_read = time.monotonic()
            self._is_compacted = Tombstones.of(self._cluster.configs(self._topic)).compacted
        return self._is_compacted

    def is_exact(self) -> bool:
        if not self._exact_at:
            return True
        if None in self._exact_at.values():
            self._ends_read = time.monotonic()
            ends = self._cluster.ends(self._topic)
            self._exact_at = {number: ends.get(number, 0) for number in self._exact_at}
        self._exact_at = {
            number: offset
            for number, offset in self._exact_at.items()
            if offset is None or self._passed[number] < offset
        }
        return not self._exact_at

    def at_end(self) -> bool:
        return len(self._ended) == len(self._polled)

    def passed(self) -> dict[int, int]:
        return self._passed

    def lag(self) -> int:
        return remaining_offsets(self._consumer, self._topic, self._passed, self._ended)

    def close(self) -> None:
        self._consumer.close()
