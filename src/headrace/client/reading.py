"""A bounded read: all committed records of some ranges of a topic, and then it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka

__all__ = ["last_record", "next_records", "read", "take"]

_PATIENCE_S = 30.0
_AT_ONCE = 10_000


def take(consumer: Consumer, at_most: int, timeout_s: float) -> list[Message]:
    """What has arrived, waiting for the first. ``Consumer.consume`` by itself waits until there are so many."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(at_most - 1, 0)]


def read(
    cluster: Cluster, topic: str, ranges: Mapping[int, tuple[int, int]], *, committed: bool = True
) -> Iterator[Message]:
    """Records of each partition from (inclusive) to (exclusive), in the order of their partition."""
    open_ranges = {partition: bounds for partition, bounds in ranges.items() if bounds[0] < bounds[1]}
    if not open_ranges:
        return
    isolation = "read_committed" if committed else "read_uncommitted"
    # The end of a range may be a marker, which only an answer without records tells of: it must come soon.
    consumer = cluster.consumer({"isolation.level": isolation, "fetch.wait.max.ms": 10})
    try:
        consumer.assign([TopicPartition(topic, number, start) for number, (start, _) in open_ranges.items()])
        while open_ranges:
            # No more than what is left, and the news of each end: what was asked for is what it costs.
            left = sum(end - start for start, end in open_ranges.values()) + len(open_ranges)
            found = take(consumer, min(_AT_ONCE, left), _PATIENCE_S)
            if not found:
                raise _silent(topic)
            for message in found:
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
                    # The end of the partition comes as an event with the offset that will be next.
                    del open_ranges[partition]
    finally:
        consumer.close()


def next_records(cluster: Cluster, topic: str, places: Mapping[int, int]) -> dict[int, int]:
    """Per partition: where the first committed record at or behind a place is, or where the next one will be. Between
    lies nothing for readers: ends of transactions, and what was aborted or removed.
    """
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    found = {number: max(at, starts.get(number, at)) for number, at in places.items()}
    waiting = {number: at for number, at in found.items() if at < ends.get(number, 0)}
    if not waiting:
        return found
    consumer = cluster.consumer({"fetch.wait.max.ms": 10, "max.partition.fetch.bytes": 65_536})
    try:
        consumer.assign([TopicPartition(topic, number, at) for number, at in waiting.items()])
        while waiting:
            message = consumer.poll(_PATIENCE_S)
            if message is None:
                raise _silent(topic)
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise from_kafka(error, f"reading topic {topic!r}")
            number = message.partition()
            if number in waiting:
                found[number] = message.offset() or 0
                del waiting[number]
    finally:
        consumer.close()
    return found


def last_record(cluster: Cluster, topic: str, partition: int = 0) -> Message | None:
    """The last committed record, which may lie some markers before the end."""
    start, end = cluster.starts(topic)[partition], cluster.ends(topic)[partition]
    reach = 8
    while start < end:
        begin = max(start, end - reach)
        last = None
        for message in read(cluster, topic, {partition: (begin, end)}):
            last = message
        if last is not None or begin == start:
            return last
        reach *= 8
    return None


def _silent(topic: str) -> LogError:
    told = f"topic {topic!r} did not answer for {_PATIENCE_S:.0f} s"
    return LogError(told, name="TIMED_OUT", retriable=True)
