"""Reads as a member of a consumer group. The group assigns and revokes partitions.

The offsets of printed records are committed. A group with committed offsets continues from them; a new group starts at
``--offset``. If a committed offset is no longer in the log, the command fails and names the missing offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.cli.consume.partitions import (
    BATCH_MAX,
    POLL_S,
    ConnectionWatch,
    consumer_error,
    open_consumer,
    records_gone_error,
)
from headrace.cli.errors import CliError
from headrace.cli.interrupt import Interrupt
from headrace.cli.kafka import Partition, translate
from headrace.cli.record import Record, next_batch, record_of
from headrace.cli.session import Session

__all__ = ["consume_in_group"]


class _Member:
    def __init__(self, session: Session, *, from_end: bool) -> None:
        self.session = session
        self.default_offset = OFFSET_END if from_end else OFFSET_BEGINNING
        self.positions: dict[Partition, int] = {}
        self.at_end: set[Partition] = set()
        self.failure: CliError | None = None
        """An error from a callback. Callbacks run inside librdkafka and must not raise, so the loop raises it."""

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            for committed in consumer.committed(partitions, timeout=self.session.timeout_s):
                self._set_start(consumer, committed)
                target = next(
                    partition
                    for partition in partitions
                    if (partition.topic, partition.partition) == (committed.topic, committed.partition)
                )
                target.offset = committed.offset
        except KafkaException as error:
            self.failure = translate(self.session, error.args[0], "fetching committed offsets")
        consumer.assign(partitions)

    def _set_start(self, consumer: Consumer, committed: TopicPartition) -> None:
        partition = (committed.topic, committed.partition)
        if committed.offset < 0:
            committed.offset = self.default_offset
            return
        self.positions[partition] = committed.offset
        start, _ = consumer.get_watermark_offsets(committed, timeout=self.session.timeout_s)
        if committed.offset < start:
            self.failure = records_gone_error(partition, committed.offset, start)
            self.failure.hint = "accept the loss and move the group: headrace group seek GROUP --to start"

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.at_end.discard((partition.topic, partition.partition))
            self.positions.pop((partition.topic, partition.partition), None)


def consume_in_group(
    session: Session,
    topics: list[str],
    group: str,
    *,
    from_end: bool,
    stop_at_end: bool,
    isolation: str,
    on_record: Callable[[Record], bool],
    on_batch_end: Callable[[], None],
) -> None:
    watch = ConnectionWatch(session)
    member = _Member(session, from_end=from_end)
    consumer = open_consumer(
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
        with Interrupt() as interrupt:
            while not interrupt.requested and not (stop_at_end and _all_read(consumer, member)):
                messages = next_batch(consumer, BATCH_MAX, POLL_S)
                if member.failure is not None:
                    raise member.failure
                if not _take_batch(session, consumer, member, watch, messages, on_record, on_batch_end):
                    break
    finally:
        # close() commits the stored offsets. It also leaves the group, so other members need not wait for a timeout.
        consumer.close()


def _all_read(consumer: Consumer, member: _Member) -> bool:
    assigned = {(partition.topic, partition.partition) for partition in consumer.assignment()}
    return bool(assigned) and assigned <= member.at_end


def _take_batch(
    session: Session,
    consumer: Consumer,
    member: _Member,
    watch: ConnectionWatch,
    messages: list[Any],
    on_record: Callable[[Record], bool],
    on_batch_end: Callable[[], None],
) -> bool:
    next_offsets: dict[Partition, int] = {}
    wants_more = True
    for message in messages:
        watch.on_message()
        partition = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            wants_more = on_record(record_of(message))
            next_offsets[partition] = member.positions[partition] = message.offset() + 1
            if not wants_more:
                break
        elif error.code() == KafkaError._PARTITION_EOF:
            member.at_end.add(partition)
        else:
            raise consumer_error(session, consumer, error, partition, member.positions.get(partition))
    on_batch_end()
    if next_offsets:
        # Store offsets only after the flush: an offset must not be committed before its record is printed.
        still_assigned = {(partition.topic, partition.partition) for partition in consumer.assignment()}
        consumer.store_offsets(
            offsets=[
                TopicPartition(*partition, offset)
                for partition, offset in next_offsets.items()
                if partition in still_assigned
            ]
        )
    return wants_more
