"""A sample of a topic's records: the first, the last, and evenly spread records of each partition, within limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.records import read

__all__ = ["SAMPLE_BYTES_MAX", "SAMPLE_RECORDS_MAX", "Sample", "SampledRecord", "sample", "windows"]

SAMPLE_RECORDS_MAX = 2_000
SAMPLE_BYTES_MAX = 16 * 1024 * 1024
_WINDOWS = 8
"""The number of ranges that are read from a partition with more records than its share of the limit."""
_SHARE_MIN = 4

_DELETED = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
"""Retention deleted records of a range while the sample was read."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SampledRecord:
    partition: int
    offset: int
    value: bytes


@dataclass(slots=True)
class Sample:
    records: list[SampledRecord] = field(default_factory=list)
    """Records with a value, by partition and offset."""
    offsets: int = 0
    """The number of offsets in the topic. Some of them may have no record."""
    is_complete: bool = True
    """Whether every record of the topic was read."""

    def add(self, message: Message) -> None:
        value = message.value()
        if value is not None:
            self.records.append(SampledRecord(message.partition() or 0, message.offset() or 0, value))


def sample(
    cluster: Cluster,
    topic: str,
    ranges: dict[int, Range],
    *,
    records_max: int = SAMPLE_RECORDS_MAX,
    bytes_max: int = SAMPLE_BYTES_MAX,
) -> Sample:
    """Read a sample. ``ranges`` has the start and the end offset of each partition."""
    open_ranges = {number: bounds for number, bounds in ranges.items() if bounds[0] < bounds[1]}
    offsets = sum(end - start for start, end in open_ranges.values())
    result = Sample(offsets=offsets, is_complete=offsets <= records_max)
    size = 0
    for window in windows(open_ranges, records_max):
        try:
            for message in read(cluster, topic, window):
                result.add(message)
                size += len(message)
                if size >= bytes_max:
                    break
        except LogError as error:
            if error.kafka_error is None or error.kafka_error.code() not in _DELETED:
                raise
            result.is_complete = False
        if size >= bytes_max:
            result.is_complete = False
            break
    result.records.sort(key=lambda record: (record.partition, record.offset))
    return result


def windows(ranges: dict[int, Range], records_max: int) -> Iterator[dict[int, Range]]:
    """Yield ranges that do not overlap, to read one after the other: first and last records first, so that a limit in
    bytes cuts off the records in between.
    """
    if sum(end - start for start, end in ranges.values()) <= records_max:
        if ranges:
            yield dict(ranges)
        return
    # Partitions beyond the limit are left out: a topic can have more partitions than the sample has records.
    chosen = dict(sorted(ranges.items())[: max(1, records_max // _SHARE_MIN)])
    share = max(_SHARE_MIN, records_max // len(chosen))
    count = min(_WINDOWS, share // 2)
    length = share // count
    parts = {number: _spread(bounds, count, length) for number, bounds in chosen.items()}
    order = [0, count - 1, *range(1, count - 1)]
    for index in order:
        window = {number: spread[index] for number, spread in parts.items() if index < len(spread)}
        if window:
            yield window


def _spread(bounds: Range, count: int, length: int) -> list[Range]:
    """Return ``count`` ranges of ``length`` offsets, evenly spread from the first to the last offset."""
    start, end = bounds
    if end - start <= count * length:
        return [bounds]
    step = (end - length - start) / (count - 1)
    begins = [start + round(step * index) for index in range(count)]
    return [(begin, begin + length) for begin in begins]
