"""Reads partitions from one offset to another, without a group.

The reader never skips records silently. If its next offset is no longer in the log, it fails and names the missing
offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition

from headrace.cli.errors import BrokerUnreachable, CliError, RecordsGone, UsageError
from headrace.cli.filters import Filter
from headrace.cli.interrupt import Interrupt
from headrace.cli.kafka import Bounds, Partition, bounds_of, offsets_of, translate
from headrace.cli.offset_range import Kind, Range
from headrace.cli.record import Record, next_batch, record_of
from headrace.cli.session import Session

__all__ = [
    "BATCH_MAX",
    "POLL_S",
    "ConnectionWatch",
    "Plan",
    "consumer_error",
    "last_records",
    "make_plan",
    "open_consumer",
    "read",
    "records_gone_error",
]

BATCH_MAX = 1_000
POLL_S = 0.2
SILENCE_S = 30.0
"""Seconds that a bounded read waits while no broker responds."""
_WINDOW_FACTOR = 4


@dataclass(slots=True)
class Plan:
    """The start offset of each partition and, in a bounded read, its end offset."""

    starts: dict[Partition, int]
    ends: dict[Partition, int] | None


def records_gone_error(partition: Partition, wanted: int, start: int) -> RecordsGone:
    topic, number = partition
    return RecordsGone(
        f"{topic} [{number}]: offset {wanted} is no longer in the log, which now starts at {start}",
        detail=f"offsets {wanted} to {start - 1} ({start - wanted} records) were deleted before they were read",
        hint=f"read the remaining records: -o start, or -o {start} -p {number}",
    )


def make_plan(
    session: Session,
    partitions: list[Partition],
    span: Range,
    *,
    stop_at_end: bool,
    isolation: IsolationLevel,
) -> Plan:
    bounds = bounds_of(session, partitions, isolation=isolation)
    starts = offsets_of(session, span.begin, bounds)
    bounded = stop_at_end or span.until is not None
    if span.begin.kind is Kind.EXACT:
        _check_exact(span.begin.value, bounds, bounded=bounded)
    if not bounded:
        return Plan(starts, None)
    wanted = {} if span.until is None else offsets_of(session, span.until, bounds)
    ends = {
        partition: min(wanted.get(partition, limits.end), limits.end) for partition, limits in bounds.items()
    }
    remaining = [partition for partition in bounds if starts[partition] < ends[partition]]
    return Plan(
        {partition: starts[partition] for partition in remaining},
        {partition: ends[partition] for partition in remaining},
    )


def _check_exact(wanted: int, bounds: Mapping[Partition, Bounds], *, bounded: bool) -> None:
    for partition, limits in bounds.items():
        if wanted < limits.start:
            raise records_gone_error(partition, wanted, limits.start)
        if wanted > limits.end and not bounded:
            topic, number = partition
            raise UsageError(
                f"offset {wanted} is beyond the end of {topic} [{number}], which is {limits.end}",
                hint="select partitions that have this offset with -p, or wait for new records with -o end",
            )


@dataclass(slots=True)
class ConnectionWatch:
    """Warns when all brokers are unreachable, and reports when a broker responds again."""

    session: Session
    down: bool = False

    def on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self.down:
            self.down = True
            self.session.out.warn(f"no broker responds at {self.session.bootstrap}; retrying")

    def on_message(self) -> None:
        if self.down:
            self.down = False
            self.session.out.note("connected again")


def open_consumer(session: Session, watch: ConnectionWatch, extra: Mapping[str, object]) -> Consumer:
    return session.cluster().consumer(
        {
            "enable.auto.offset.store": False,
            "fetch.wait.max.ms": 250,
            "error_cb": watch.on_error,
            **extra,
        }
    )


@dataclass(slots=True)
class _Progress:
    positions: dict[Partition, int]
    ends: dict[Partition, int] | None
    unfinished: set[Partition] = field(default_factory=set)

    def advance(self, partition: Partition, position: int) -> None:
        self.positions[partition] = position
        if self.ends is not None and position >= self.ends.get(partition, 0):
            self.unfinished.discard(partition)


def read(
    session: Session,
    plan: Plan,
    *,
    isolation: IsolationLevel,
    on_record: Callable[[Record], bool],
    on_batch_end: Callable[[], None],
    with_bounds: bool = False,
) -> None:
    """Pass every record to ``on_record`` until it returns False or the read reaches the plan's ends."""
    if not plan.starts:
        return
    watch = ConnectionWatch(session)
    consumer = open_consumer(
        session, watch, {"group.id": "headrace-consume", "isolation.level": isolation.name.lower()}
    )
    progress = _Progress(dict(plan.starts), plan.ends, set(plan.starts))
    with closing(consumer):
        consumer.assign([TopicPartition(topic, number, at) for (topic, number), at in plan.starts.items()])
        silent_s = 0.0
        with Interrupt() as interrupt:
            while progress.unfinished and not interrupt.requested:
                messages = next_batch(consumer, BATCH_MAX, POLL_S)
                silent_s = 0.0 if messages else silent_s + POLL_S
                if watch.down and plan.ends is not None and silent_s > SILENCE_S:
                    raise BrokerUnreachable(
                        f"no broker has responded at {session.bootstrap} for {SILENCE_S:g} s"
                    )
                for message in messages:
                    watch.on_message()
                    if not _take_message(session, consumer, message, progress, on_record, with_bounds):
                        progress.unfinished.clear()
                        break
                on_batch_end()


def _take_message(
    session: Session,
    consumer: Consumer,
    message: Any,
    progress: _Progress,
    on_record: Callable[[Record], bool],
    with_bounds: bool,
) -> bool:
    partition = (message.topic(), message.partition())
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            progress.advance(partition, message.offset())
            return True
        raise consumer_error(session, consumer, error, partition, progress.positions.get(partition))
    offset = message.offset()
    if progress.ends is not None and offset >= progress.ends[partition]:
        progress.advance(partition, offset)
        return True
    record = record_of(message)
    if with_bounds:
        record.log_start, record.high_watermark = _cached_bounds(consumer, partition)
    wants_more = on_record(record)
    progress.advance(partition, offset + 1)
    return wants_more


def _cached_bounds(consumer: Consumer, partition: Partition) -> tuple[int, int]:
    """Return the bounds from the last fetch, without a request."""
    bounds = consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
    return bounds if bounds is not None else (-1, -1)


def consumer_error(
    session: Session, consumer: Consumer, error: KafkaError, partition: Partition, position: int | None
) -> CliError:
    """Translate a consumer's error. If the records at the consumer's position were deleted, the error names the missing
    offsets.
    """
    topic, number = partition
    if error.code() == KafkaError._AUTO_OFFSET_RESET and position is not None:
        try:
            start, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=5)
        except KafkaException as failure:
            return translate(session, failure.args[0], f"reading the bounds of {topic} [{number}]")
        if position < start:
            return records_gone_error(partition, position, start)
        return CliError(f"{topic} [{number}]: offset {position} is not in the log, which ends at {end}")
    return translate(session, error, f"reading {topic} [{number}]", topic=topic, partition=number)


# The last N records


def last_records(
    session: Session,
    bounds: dict[Partition, Bounds],
    count: int,
    *,
    isolation: IsolationLevel,
    matches: Filter,
) -> list[Record]:
    """Return the last ``count`` records of all partitions that match the filter, oldest first by timestamp.

    Records of one partition keep their order. The last N offsets can have fewer than N records, because of transaction
    markers, compaction or the filter. Then a range of offsets four times as large is read, and so on, until it has
    enough records or reaches the start of the log.
    """
    last: dict[Partition, deque[Record]] = {}
    window = count
    remaining = {partition for partition, limits in bounds.items() if limits.start < limits.end}
    while remaining:
        starts = {
            partition: max(bounds[partition].start, bounds[partition].end - window) for partition in remaining
        }
        for partition in remaining:
            last[partition] = deque(maxlen=count)
        on_record = _keep_matching(last, matches)
        ends = {partition: bounds[partition].end for partition in remaining}
        read(session, Plan(starts, ends), isolation=isolation, on_record=on_record, on_batch_end=lambda: None)
        remaining = {
            partition
            for partition in remaining
            if len(last[partition]) < count and starts[partition] > bounds[partition].start
        }
        window *= _WINDOW_FACTOR
    return _by_time(last.values())[-count:]


def _keep_matching(last: dict[Partition, deque[Record]], matches: Filter) -> Callable[[Record], bool]:
    def on_record(record: Record) -> bool:
        if matches(record):
            last[record.topic, record.partition].append(record)
        return True

    return on_record


def _by_time(partitions: Iterable[Iterable[Record]]) -> list[Record]:
    """Sort by timestamp without reordering a partition: a record sorts no earlier than its predecessor."""
    timed: list[tuple[int, str, int, int, Record]] = []
    for records in partitions:
        latest = -1
        for record in records:
            latest = max(latest, record.timestamp)
            timed.append((latest, record.topic, record.partition, record.offset, record))
    return [record for *_, record in sorted(timed, key=lambda entry: entry[:4])]
