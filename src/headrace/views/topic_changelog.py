"""A topic that no flow writes, as a changelog: whatever has arrived, in pieces of a bounded size."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.reading import take
from headrace.views.piece import CONSUMER, Piece, expect_readable, high_watermark

__all__ = ["TopicChangelog"]


class TopicChangelog:
    def __init__(
        self, cluster: Cluster, topic: str, offsets: Mapping[int, int], *, max_rows: int = 10_000
    ) -> None:
        self._max_rows = max_rows
        self._topic = topic
        self._taken = dict(offsets)
        self._passed = dict(offsets)
        self._ended: set[int] = set()
        self._consumer = cluster.consumer(CONSUMER)
        self._consumer.assign([TopicPartition(topic, number, at) for number, at in offsets.items()])

    def take(self, timeout_s: float) -> Piece | None:
        messages: list[Message] = []
        for message in take(self._consumer, self._max_rows, timeout_s):
            if message.error() is None:
                messages.append(message)
            elif not expect_readable(message):
                # The news of an end come behind the records before it, and before those that came later.
                self._note(messages)
                number, offset = message.partition() or 0, message.offset() or 0
                self._passed[number] = max(offset, self._passed[number])
                self._ended.add(number)
        self._note(messages)
        return Piece(messages, dict(self._taken)) if messages else None

    def _note(self, messages: list[Message]) -> None:
        """What comes behind the last of each partition, which is soon found from the end."""
        noted: set[int] = set()
        for message in reversed(messages):
            number = message.partition() or 0
            if number not in noted:
                noted.add(number)
                at = (message.offset() or 0) + 1
                if at > self._taken[number]:
                    self._taken[number] = self._passed[number] = at
                    self._ended.discard(number)
                if len(noted) == len(self._taken):
                    return

    def at_end(self) -> bool:
        return len(self._ended) == len(self._taken)

    def passed(self) -> dict[int, int]:
        return self._passed

    def lag(self) -> int:
        behind = [number for number in self._passed if number not in self._ended]
        return sum(
            max(0, high_watermark(self._consumer, self._topic, one) - self._passed[one]) for one in behind
        )

    def close(self) -> None:
        self._consumer.close()
