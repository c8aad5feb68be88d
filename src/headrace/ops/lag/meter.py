"""Measures the lag of readers repeatedly. Rates are measured between two calls.

Memory use is bounded: a few counts and one timestamp per partition and reader. The age of a lag is the age of the next
record that the reader will read. ``NextRecords`` reads this record from each partition with unread records.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.client.cluster import Cluster
from headrace.clock import Clock, SystemClock
from headrace.ops.lag.lag import Lag, Loss, Unread, loss_of, soonest
from headrace.ops.lag.log_snapshot import LogSnapshot, offsets_at, take_snapshot
from headrace.ops.lag.rates import Rate, Rates
from headrace.ops.lag.reader import Partition, Reader

__all__ = ["LagMeter", "NextRecords"]

_WINDOW_S = 60
NO_RECORD = -1
"""No record follows: the partition has only transaction markers up to its end."""
_WAIT_S = 2.0

ReadPoint = tuple[Partition, int]
"""A partition and the offset from which to read the next record."""


class LagMeter:
    def __init__(self, cluster: Cluster, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._next = NextRecords(cluster)
        self._arrival_rates = Rates()
        self._read_rates = Rates()

    def close(self) -> None:
        self._next.close()

    def measure(self, readers: Sequence[Reader], log: LogSnapshot | None = None) -> list[Lag]:
        """Return the lag of each reader, in the same order. ``log`` is a snapshot with all topics of the readers; if it
        is None, the meter requests a snapshot.
        """
        if log is None:
            log = take_snapshot(self._cluster, {topic for reader in readers for topic in reader.log_topics})
        at_s, now_ms = self._clock.steady(), self._clock.now_ms()
        arrival_rates = self._arrivals(log, at_s, now_ms)
        positions = [_positions(reader, log) for reader in readers]
        unread = [
            {partition: _unread(reader, log, partition, offset) for partition, offset in offsets.items()}
            for reader, offsets in zip(readers, positions, strict=True)
        ]
        read_points = {
            (partition, max(offsets[partition], log.starts[partition]))
            for offsets, counts in zip(positions, unread, strict=True)
            for partition, count in counts.items()
            if count
        }
        written = self._next.written_ms(read_points)
        lags = []
        for reader, offsets, counts in zip(readers, positions, unread, strict=True):
            ages = {}
            for partition, count in counts.items():
                timestamp_ms = (
                    written.get((partition, max(offsets[partition], log.starts[partition])))
                    if count
                    else NO_RECORD
                )
                ages[partition] = (
                    None
                    if timestamp_ms is None
                    else 0.0
                    if timestamp_ms == NO_RECORD
                    else max(0, now_ms - timestamp_ms) / 1_000
                )
            read_rates = {
                partition: self._read_rates.add_sample((reader.what, reader.name, partition), at_s, offset)
                for partition, offset in offsets.items()
            }
            lags.append(_lag(reader, log, offsets, counts, ages, arrival_rates, read_rates))
        self._arrival_rates.retain(log.ends.keys())
        current_keys = {
            (reader.what, reader.name, partition)
            for reader, offsets in zip(readers, positions, strict=True)
            for partition in offsets
        }
        self._read_rates.retain(current_keys)
        return lags

    def _arrivals(self, log: LogSnapshot, at_s: float, now_ms: int) -> dict[Partition, Rate]:
        """Return the rate of new records by partition. A partition's first rate comes from the records' timestamps.
        Later rates come from the growth since the previous calls.
        """
        rates = {
            partition: self._arrival_rates.add_sample(partition, at_s, end)
            for partition, end in log.ends.items()
        }
        new = [partition for partition, rate in rates.items() if rate is None]
        before = offsets_at(self._cluster, new, now_ms - _WINDOW_S * 1_000)
        arrivals = {partition: rate for partition, rate in rates.items() if rate is not None}
        for partition, offset in before.items():
            per_s = 0.0 if offset is None else max(0, log.ends[partition] - offset) / _WINDOW_S
            arrivals[partition] = Rate(per_s, per_s)
        return arrivals


def _positions(reader: Reader, log: LogSnapshot) -> dict[Partition, int]:
    """Return the next offset of each partition that the reader reads."""
    if not reader.lag_known:
        return {}
    offsets = {
        (topic, number): 0 if reader.has_started else log.starts[topic, number]
        for topic in reader.topics
        for number in range(log.partitions.get(topic, 0))
    }
    return offsets | {
        partition: offset for partition, offset in reader.offsets.items() if partition in log.ends
    }


def _unread(reader: Reader, log: LogSnapshot, partition: Partition, offset: int) -> int:
    if reader.at_end:
        return 0
    return max(0, _end(reader, log, partition) - max(offset, log.starts[partition]))


def _end(reader: Reader, log: LogSnapshot, partition: Partition) -> int:
    return (log.committed_ends if reader.read_committed else log.ends)[partition]


def _lag(
    reader: Reader,
    log: LogSnapshot,
    offsets: dict[Partition, int],
    unread: dict[Partition, int],
    ages: dict[Partition, float | None],
    arrival_rates: dict[Partition, Rate],
    read_rates: dict[Partition, Rate | None],
) -> Lag:
    gone = (
        sum(max(0, log.starts[partition] - offset) for partition, offset in offsets.items())
        if reader.has_started
        else 0
    )
    missing = _missing(reader, log) if reader.lag_known else ""
    if missing or not reader.lag_known:
        why = f"topic {missing} does not exist" if missing and reader.has_started else ""
        return Lag(reader, gone=gone, why=why)
    sizes = {partition: _bytes(log, partition, count) for partition, count in unread.items()}
    losses: list[Loss | None] = []
    for partition, count in unread.items():
        read_rate, arrival_rate = read_rates[partition], arrival_rates[partition]
        # Use the worse of the average and the last rate, so that a reader that has just stopped has rate 0.
        read_per_s = 0.0 if read_rate is None else min(read_rate.per_s, read_rate.last_per_s)
        arriving_per_s = max(arrival_rate.per_s, arrival_rate.last_per_s)
        losses.append(
            loss_of(
                log.retentions[partition[0]],
                Unread(count, ages[partition], sizes[partition], arriving_per_s, read_per_s),
            )
        )
    known_ages = [age for age in ages.values() if age is not None]
    known_sizes = [size for size in sizes.values() if size is not None]
    rates = [rate for rate in read_rates.values() if rate is not None]
    return Lag(
        reader,
        sum(unread.values()),
        gone,
        int(sum(known_sizes)) if len(known_sizes) == len(sizes) else None,
        max(known_ages, default=0.0) if len(known_ages) == len(ages) else None,
        sum(arrival_rates[partition].per_s for partition in unread),
        sum(rate.per_s for rate in rates) if len(rates) == len(read_rates) else None,
        soonest(losses),
        unread,
        ages,
        {partition: _end(reader, log, partition) for partition in unread},
    )


def _bytes(log: LogSnapshot, partition: Partition, count: int) -> float | None:
    record_bytes = log.average_record_bytes(partition)
    return 0.0 if not count else None if record_bytes is None else count * record_bytes


def _missing(reader: Reader, log: LogSnapshot) -> str:
    return next((name for name in sorted(reader.log_topics) if name not in log.partitions), "")


class NextRecords:
    """Reads the timestamps of the next records. A timestamp is cached while the reader stays at its offset, so a reader
    without progress causes no reads.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._consumer: Consumer | None = None
        self._timestamps_ms: dict[ReadPoint, int] = {}

    def written_ms(self, read_points: Iterable[ReadPoint]) -> dict[ReadPoint, int]:
        """Return timestamps by read point. A read point is absent if its record does not arrive within two seconds, or
        cannot be read.
        """
        requested = set(read_points)
        # Remove read points without a next record from the cache, because a record can have been written since.
        self._timestamps_ms = {
            read_point: timestamp_ms
            for read_point, timestamp_ms in self._timestamps_ms.items()
            if read_point in requested and timestamp_ms != NO_RECORD
        }
        deadline = time.monotonic() + _WAIT_S
        pending = sorted(requested - self._timestamps_ms.keys())
        while pending and time.monotonic() < deadline:
            # A consumer has one offset per partition, but readers of the same partition can be at different offsets.
            to_read: dict[Partition, int] = {}
            postponed = []
            for partition, offset in pending:
                if to_read.setdefault(partition, offset) != offset:
                    postponed.append((partition, offset))
            self._read(to_read, deadline)
            pending = postponed
        return dict(self._timestamps_ms)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _read(self, read_points: dict[Partition, int], deadline: float) -> None:
        consumer = self._consumer = self._consumer or self._cluster.consumer(
            {
                "group.id": "headrace-lag",
                "isolation.level": "read_uncommitted",
                "max.partition.fetch.bytes": 1_024,
                "queued.min.messages": 1,
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign(
            [TopicPartition(topic, number, offset) for (topic, number), offset in read_points.items()]
        )
        pending = set(read_points)
        while pending and (remaining_s := deadline - time.monotonic()) > 0:
            message = consumer.poll(remaining_s)
            if message is None:
                break
            partition = (message.topic() or "", message.partition() or 0)
            if partition not in pending:
                continue
            pending.discard(partition)
            error = message.error()
            if error is None:
                kind, timestamp_ms = message.timestamp()
                if kind:
                    self._timestamps_ms[partition, read_points[partition]] = timestamp_ms
            elif error.code() == KafkaError._PARTITION_EOF:
                self._timestamps_ms[partition, read_points[partition]] = NO_RECORD
        consumer.unassign()
