"""The ends of topics of one partition, followed by one consumer: what came since the last look, of all of them."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.reading import take

__all__ = ["RecordTails"]

_AT_ONCE = 10_000
_AWAY = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._PARTITION_EOF}


class RecordTails:
    """In one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._consumer: Consumer | None = None
        self._next: dict[str, int] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._next

    def follow(self, topic: str, offset: int) -> None:
        self._next[topic] = offset
        self._assign()

    def take(self) -> list[tuple[str, int, bytes]]:
        """Topic, offset and value. A topic that cannot be read on with is not followed any more: it may be another."""
        if self._consumer is None or not self._next:
            return []
        found = []
        lost = set()
        for message in take(self._consumer, _AT_ONCE, 0):
            error, topic = message.error(), message.topic() or ""
            if error is None:
                offset = message.offset() or 0
                self._next[topic] = offset + 1
                found.append((topic, offset, message.value() or b""))
            elif error.code() not in _AWAY and not error.retriable():
                lost.add(topic)
        if lost:
            self._next = {topic: at for topic, at in self._next.items() if topic not in lost}
            self._assign()
        return found

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _assign(self) -> None:
        if self._consumer is None:
            self._consumer = self._cluster.consumer(
                {"group.id": "headrace-observed", "queued.max.messages.kbytes": 4_096}
            )
        self._consumer.assign([TopicPartition(topic, 0, at) for topic, at in self._next.items()])
