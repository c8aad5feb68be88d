"""Reading as a member of a group: partitions come and go, and what was printed is committed.

A group that has committed goes on from there; one that has not begins where it is told. A committed offset
that has left the log ends the command with the range that is gone, instead of jumping over it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.cli.client import translate
from headrace.cli.errors import CliError
from headrace.cli.lookup import Partition
from headrace.cli.messages import next_batch, record_of
from headrace.cli.reading import BATCH_MAX, POLL_S, Watch, explain, gone, open_reader
from headrace.cli.record import Record
from headrace.cli.session import Session
from headrace.cli.stopping import Stopping

__all__ = ["follow"]


class _Member:
    def __init__(self, session: Session, *, from_end: bool) -> None:
        self.session = session
        self.first = OFFSET_END if from_end else OFFSET_BEGINNING
        self.positions: dict[Partition, int] = {}
        self.at_end: set[Partition] = set()
        self.failure: CliError | None = None
        """Callbacks run inside the client, where nothing may be raised; the loop raises it."""

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            for one in consumer.committed(partitions, timeout=self.session.timeout_s):
                self._begin(consumer, one)
                target = next(p for p in partitions if (p.topic, p.partition) == (one.topic, one.partition))
                target.offset = one.offset
        except KafkaException as error:
            self.failure = translate(self.session, error.args[0], "asking for committed offsets")
        consumer.assign(partitions)

    def _begin(self, consumer: Consumer, one: TopicPartition) -> None:
        where = (one.topic, one.partition)
        if one.offset < 0:
            one.offset = self.first
            return
        self.positions[where] = one.offset
        start, _ = consumer.get_watermark_offsets(one, timeout=self.session.timeout_s)
        if one.offset < start:
            self.failure = gone(where, one.offset, start)
            self.failure.hint = "accept the loss by moving the group: headrace group seek GROUP --to start"

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self.at_end.discard((one.topic, one.partition))
            self.positions.pop((one.topic, one.partition), None)


def follow(
    session: Session,
    topics: list[str],
    group: str,
    *,
    from_end: bool,
    stop_at_end: bool,
    isolation: str,
    take: Callable[[Record], bool],
    batch_done: Callable[[], None],
) -> None:
    watch = Watch(session)
    member = _Member(session, from_end=from_end)
    consumer = open_reader(
        session,
        watch,
        {
            "group.id": group,
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 1_000,
            "isolation.level": isolation,
        },
    )
    try:
        consumer.subscribe(topics, on_assign=member.assigned, on_revoke=member.revoked)
        with Stopping() as stopping:
            while not stopping.asked and not (stop_at_end and _all_read(consumer, member)):
                messages = next_batch(consumer, BATCH_MAX, POLL_S)
                if member.failure is not None:
                    raise member.failure
                if not _take_batch(session, consumer, member, watch, messages, take, batch_done):
                    break
    finally:
        # Leaves the group, so that others need not wait for a time-out, and commits what was stored.
        consumer.close()


def _all_read(consumer: Consumer, member: _Member) -> bool:
    assigned = {(one.topic, one.partition) for one in consumer.assignment()}
    return bool(assigned) and assigned <= member.at_end


def _take_batch(
    session: Session,
    consumer: Consumer,
    member: _Member,
    watch: Watch,
    messages: list[Any],
    take: Callable[[Record], bool],
    batch_done: Callable[[], None],
) -> bool:
    printed: dict[Partition, int] = {}
    going_on = True
    for message in messages:
        watch.seen()
        where = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            going_on = take(record_of(message))
            printed[where] = member.positions[where] = message.offset() + 1
            if not going_on:
                break
        elif error.code() == KafkaError._PARTITION_EOF:
            member.at_end.add(where)
        else:
            raise explain(session, consumer, error, where, member.positions.get(where))
    batch_done()
    if printed:
        # Only now: an offset must not be committed before its record has left this process.
        held = {(one.topic, one.partition) for one in consumer.assignment()}
        consumer.store_offsets(
            offsets=[TopicPartition(*where, at) for where, at in printed.items() if where in held]
        )
    return going_on
