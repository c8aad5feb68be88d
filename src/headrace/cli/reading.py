"""Reading partitions from one offset to another, without a group.

A reader is never moved in silence. It is told where to begin, and if that place has left the log, before or
while it reads, it ends with the range that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.cli.client import open_consumer, translate
from headrace.cli.errors import BrokerUnreachable, CliError, RecordsGone, UsageError
from headrace.cli.lookup import Bounds, Partition, bounds_of, offsets_of
from headrace.cli.messages import next_batch, record_of
from headrace.cli.offsets import Kind, Range
from headrace.cli.record import Record
from headrace.cli.session import Session
from headrace.cli.stopping import Stopping

__all__ = ["Plan", "Watch", "make_plan", "open_reader", "read"]

BATCH_MAX = 1_000
POLL_S = 0.2
SILENCE_S = 30.0
"""How long a bounded read waits for brokers that have gone away."""


@dataclass(slots=True)
class Plan:
    """Where to begin in each partition and, in a bounded read, where to stop."""

    starts: dict[Partition, int]
    ends: dict[Partition, int] | None


def gone(where: Partition, wanted: int, start: int) -> RecordsGone:
    topic, number = where
    return RecordsGone(
        f"{topic} [{number}]: offset {wanted} is no longer there; the log now starts at {start}",
        detail=f"offsets {wanted} to {start - 1} ({start - wanted} records) were deleted before they were read",
        hint=f"begin with what there is: -o start, or -o {start} -p {number}",
    )


def make_plan(
    session: Session,
    admin: AdminClient,
    partitions: list[Partition],
    span: Range,
    *,
    stop_at_end: bool,
    isolation: IsolationLevel,
) -> Plan:
    bounds = bounds_of(session, admin, partitions, isolation=isolation)
    starts = offsets_of(session, admin, span.begin, bounds)
    bounded = stop_at_end or span.until is not None
    if span.begin.kind is Kind.EXACT:
        _check_exact(span.begin.value, bounds, bounded=bounded)
    if not bounded:
        return Plan(starts, None)
    wanted = {} if span.until is None else offsets_of(session, admin, span.until, bounds)
    ends = {where: min(wanted.get(where, limits.end), limits.end) for where, limits in bounds.items()}
    todo = [where for where in bounds if starts[where] < ends[where]]
    return Plan({where: starts[where] for where in todo}, {where: ends[where] for where in todo})


def _check_exact(wanted: int, bounds: Mapping[Partition, Bounds], *, bounded: bool) -> None:
    for where, limits in bounds.items():
        if wanted < limits.start:
            raise gone(where, wanted, limits.start)
        if wanted > limits.end and not bounded:
            raise UsageError(
                f"offset {wanted} is beyond the end of {where[0]} [{where[1]}]: the next record gets {limits.end}",
                hint="name the partitions that reach so far with -p, or wait at the end with -o end",
            )


@dataclass(slots=True)
class Watch:
    """Hears from the client whether brokers are there, and tells a person when that changes."""

    session: Session
    down: bool = False

    def heard(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self.down:
            self.down = True
            self.session.out.warn(f"no broker answers at {self.session.bootstrap}; trying again")

    def seen(self) -> None:
        if self.down:
            self.down = False
            self.session.out.note("connected again")


def open_reader(session: Session, watch: Watch, extra: Mapping[str, object]) -> Consumer:
    return open_consumer(
        session,
        {
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "enable.auto.offset.store": False,
            "fetch.wait.max.ms": 250,
            "error_cb": watch.heard,
            **extra,
        },
    )


@dataclass(slots=True)
class _Progress:
    positions: dict[Partition, int]
    ends: dict[Partition, int] | None
    left: set[Partition] = field(default_factory=set)

    def reached(self, where: Partition, position: int) -> None:
        self.positions[where] = position
        if self.ends is not None and position >= self.ends.get(where, 0):
            self.left.discard(where)


def read(
    session: Session,
    plan: Plan,
    *,
    isolation: IsolationLevel,
    take: Callable[[Record], bool],
    batch_done: Callable[[], None],
    with_bounds: bool = False,
) -> None:
    """Hand every record to ``take`` until it returns False or the plan's ends are reached."""
    if not plan.starts:
        return
    watch = Watch(session)
    consumer = open_reader(
        session,
        watch,
        {
            "group.id": "headrace-consume",
            "enable.auto.commit": False,
            "isolation.level": isolation.name.lower(),
        },
    )
    progress = _Progress(dict(plan.starts), plan.ends, set(plan.starts))
    try:
        consumer.assign([TopicPartition(topic, number, at) for (topic, number), at in plan.starts.items()])
        silent_s = 0.0
        with Stopping() as stopping:
            while progress.left and not stopping.asked:
                messages = next_batch(consumer, BATCH_MAX, POLL_S)
                silent_s = 0.0 if messages else silent_s + POLL_S
                if watch.down and plan.ends is not None and silent_s > SILENCE_S:
                    raise BrokerUnreachable(
                        f"no broker has answered at {session.bootstrap} for {SILENCE_S:g} s"
                    )
                for message in messages:
                    watch.seen()
                    if not _take_one(session, consumer, message, progress, take, with_bounds):
                        progress.left.clear()
                        break
                batch_done()
    finally:
        consumer.close()


def _take_one(
    session: Session,
    consumer: Consumer,
    message: Any,
    progress: _Progress,
    take: Callable[[Record], bool],
    with_bounds: bool,
) -> bool:
    where = (message.topic(), message.partition())
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            progress.reached(where, message.offset())
            return True
        raise explain(session, consumer, error, where, progress.positions.get(where))
    offset = message.offset()
    if progress.ends is not None and offset >= progress.ends[where]:
        progress.reached(where, offset)
        return True
    record = record_of(message)
    if with_bounds:
        record.log_start, record.high_watermark = _watermarks(consumer, where)
    going_on = take(record)
    progress.reached(where, offset + 1)
    return going_on


def _watermarks(consumer: Consumer, where: Partition) -> tuple[int, int]:
    """As the last fetch told them; no question is asked."""
    found = consumer.get_watermark_offsets(TopicPartition(*where), cached=True)
    return found if found is not None else (-1, -1)


def explain(
    session: Session, consumer: Consumer, error: KafkaError, where: Partition, position: int | None
) -> CliError:
    """A consumer's error; when its position has left the log, with the range that did."""
    topic, number = where
    if error.code() == KafkaError._AUTO_OFFSET_RESET and position is not None:
        try:
            start, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=5)
        except KafkaException as failure:
            return translate(session, failure.args[0], f"asking where {topic} [{number}] starts")
        if position < start:
            return gone(where, position, start)
        return CliError(f"{topic} [{number}]: offset {position} is not in the log, which ends at {end}")
    return translate(session, error, f"reading {topic} [{number}]", topic=topic, partition=number)
