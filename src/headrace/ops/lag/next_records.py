"""When the record that a reader reads next was written.

It takes reading that record: one of each partition that somebody is behind in, however many are unread. What was read
once is remembered for as long as the reader stays there, so one that stands still costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.client.cluster import Cluster
from headrace.ops.lag.reader import Partition

__all__ = ["NOTHING", "NextRecords"]

NOTHING = -1
"""What lies there up to the end are ends of transactions, and no records."""
_WAIT_S = 2.0

Spot = tuple[Partition, int]
"""A partition and the offset from which on the next record is looked for."""


class NextRecords:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._consumer: Consumer | None = None
        self._known: dict[Spot, int] = {}

    def written_ms(self, spots: Iterable[Spot]) -> dict[Spot, int]:
        """What has not come within two seconds, or cannot be read, is not in it."""
        wanted = set(spots)
        # What was empty up to its end may have got records since.
        self._known = {
            spot: stamp for spot, stamp in self._known.items() if spot in wanted and stamp != NOTHING
        }
        deadline = time.monotonic() + _WAIT_S
        waiting = sorted(wanted - self._known.keys())
        while waiting and time.monotonic() < deadline:
            # A consumer is at one place of a partition at a time; readers of one topic may be at several.
            now: dict[Partition, int] = {}
            later = []
            for partition, offset in waiting:
                if now.setdefault(partition, offset) != offset:
                    later.append((partition, offset))
            self._read(now, deadline)
            waiting = later
        return dict(self._known)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _read(self, spots: dict[Partition, int], deadline: float) -> None:
        consumer = self._consumer = self._consumer or self._cluster.consumer(
            {
                "group.id": "headrace-lag",
                "isolation.level": "read_uncommitted",
                "max.partition.fetch.bytes": 1_024,
                "queued.min.messages": 1,
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign([TopicPartition(topic, number, at) for (topic, number), at in spots.items()])
        waiting = set(spots)
        while waiting and (left := deadline - time.monotonic()) > 0:
            message = consumer.poll(left)
            if message is None:
                break
            place = (message.topic() or "", message.partition() or 0)
            if place not in waiting:
                continue
            waiting.discard(place)
            error = message.error()
            if error is None:
                kind, stamp = message.timestamp()
                if kind:
                    self._known[place, spots[place]] = stamp
            elif error.code() == KafkaError._PARTITION_EOF:
                self._known[place, spots[place]] = NOTHING
        consumer.unassign()
