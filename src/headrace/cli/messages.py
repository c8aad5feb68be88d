"""A client's messages, taken as they come, and as our records."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer

from headrace.cli.record import Record

__all__ = ["next_batch", "record_of"]

# The client counts no timestamp as 0, the producer's as 1 and the broker's as 2; the protocol as -1, 0 and 1.
_TYPE_SHIFT = -1


def next_batch(consumer: Consumer, count_max: int, timeout_s: float) -> list[Any]:
    """Wait for the first message only, then take what is there: nobody waits for a batch to fill up."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(count_max - 1, 0)]


def record_of(message: Any) -> Record:
    kind, stamp = message.timestamp()
    epoch = message.leader_epoch()
    return Record(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset() if message.offset() is not None else -1,
        timestamp=stamp if kind else -1,
        timestamp_type=kind + _TYPE_SHIFT,
        key=message.key(),
        value=message.value(),
        headers=message.headers() or [],
        leader_epoch=-1 if epoch is None else epoch,
    )
