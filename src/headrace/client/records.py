"""Reads and writes a few records: bounded reads of committed records, the last values of a small topic, and a single
write.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka

__all__ = ["LastValues", "last_record", "last_values", "next_records", "read", "take", "write"]

_RESPONSE_S = 30.0
_POLL_RECORDS_MAX = 10_000


def take(consumer: Consumer, at_most: int, timeout_s: float) -> list[Message]:
    """Wait for the first record; returns it with the records that have already arrived.

    ``Consumer.consume`` alone would wait until ``at_most`` records have arrived.
    """
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(at_most - 1, 0)]


def read(
    cluster: Cluster, topic: str, ranges: Mapping[int, tuple[int, int]], *, committed: bool = True
) -> Iterator[Message]:
    """Yield the records of each partition in the range (start, end), in offset order per partition. ``end`` is
    exclusive.
    """
    open_ranges = {partition: bounds for partition, bounds in ranges.items() if bounds[0] < bounds[1]}
    if not open_ranges:
        return
    isolation = "read_committed" if committed else "read_uncommitted"
    # A range may end with a transaction marker. The consumer then gets only an empty response, so wait only 10 ms.
    consumer = cluster.consumer({"isolation.level": isolation, "fetch.wait.max.ms": 10})
    try:
        consumer.assign([TopicPartition(topic, number, start) for number, (start, _) in open_ranges.items()])
        while open_ranges:
            # At most the remaining records, plus one end-of-partition event for each partition.
            left = sum(end - start for start, end in open_ranges.values()) + len(open_ranges)
            messages = take(consumer, min(_POLL_RECORDS_MAX, left), _RESPONSE_S)
            if not messages:
                raise _timeout_error(topic)
            for message in messages:
                partition = message.partition()
                if partition not in open_ranges:
                    continue
                end = open_ranges[partition][1]
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise from_kafka(error, f"reading topic {topic!r}")
                offset = message.offset()
                if error is None and offset is not None and offset < end:
                    yield message
                if offset is None or offset + (error is None) >= end:
                    # The offset of an end-of-partition event is the next offset.
                    del open_ranges[partition]
    finally:
        consumer.close()


def next_records(cluster: Cluster, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """Return the offset of the first committed record at or after each offset, per partition. If no such record exists,
    return the offset that the next record will have.

    The skipped offsets are transaction markers, aborted records or removed records.
    """
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    next_offsets = {number: max(at, starts.get(number, at)) for number, at in offsets.items()}
    unresolved = {number: at for number, at in next_offsets.items() if at < ends.get(number, 0)}
    if not unresolved:
        return next_offsets
    consumer = cluster.consumer({"fetch.wait.max.ms": 10, "max.partition.fetch.bytes": 65_536})
    try:
        consumer.assign([TopicPartition(topic, number, at) for number, at in unresolved.items()])
        while unresolved:
            message = consumer.poll(_RESPONSE_S)
            if message is None:
                raise _timeout_error(topic)
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise from_kafka(error, f"reading topic {topic!r}")
            number = message.partition()
            if number in unresolved:
                next_offsets[number] = message.offset() or 0
                del unresolved[number]
    finally:
        consumer.close()
    return next_offsets


def last_record(cluster: Cluster, topic: str, partition: int = 0) -> Message | None:
    """Return the last committed record of a partition, or ``None``. Transaction markers may follow it."""
    start, end = cluster.starts(topic)[partition], cluster.ends(topic)[partition]
    window = 8
    while start < end:
        begin = max(start, end - window)
        last = None
        for message in read(cluster, topic, {partition: (begin, end)}):
            last = message
        if last is not None or begin == start:
            return last
        window *= 8
    return None


def _timeout_error(topic: str) -> LogError:
    message = f"no response for topic {topic!r} within {_RESPONSE_S:.0f} s"
    return LogError(message, name="TIMED_OUT", retriable=True)


def write(
    cluster: Cluster,
    topic: str,
    key: str | None,
    value: bytes | None,
    doing: str,
    *,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> None:
    """Write one record, and wait until the log has it. ``doing`` describes the write in error messages."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = cluster.producer({"linger.ms": 0, "message.timeout.ms": int(cluster.timeout_s * 1_000)})
    producer.produce(topic, key=key, value=value, headers=[*headers] or None, on_delivery=delivered)
    producer.flush(cluster.timeout_s + 1)
    if failed:
        raise from_kafka(failed[0], doing)


class LastValues:
    """The last value of each key of a topic with one partition, kept up to date by reading only the new records.

    Thread-safe. Use ``last_values``, which has one per connection and topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lock = threading.Lock()
        self._topic_id = ""
        self._end = 0
        self._values: dict[bytes, bytes] = {}

    def read(self) -> dict[bytes, bytes]:
        """Return the committed values as of this call; keys whose last value is null are missing."""
        with self._lock:
            info = self._cluster.topic(self._topic)
            if info is None:
                self._topic_id = ""
                return {}
            end = self._cluster.ends(self._topic)[0]
            if info.id != self._topic_id or end < self._end:
                # The topic was created again, or the log was reset.
                self._topic_id, self._end, self._values = info.id, self._cluster.starts(self._topic)[0], {}
            if end > self._end:
                values = dict(self._values)
                for message in read(self._cluster, self._topic, {0: (self._end, end)}):
                    key, value = message.key() or b"", message.value()
                    if value is None:
                        values.pop(key, None)
                    else:
                        values[key] = value
                self._values, self._end = values, end
            return self._values


def last_values(cluster: Cluster, topic: str) -> dict[bytes, bytes]:
    return cluster.shared((LastValues, topic), lambda: LastValues(cluster, topic)).read()
