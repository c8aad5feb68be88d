"""Whether a topic holds records with keys, found by reading some of each partition: its first and its last ones.

As the embedded broker does it for itself; here for any Kafka, with a stock consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import TopicPartition

from headrace.cli.client import open_consumer
from headrace.cli.errors import CliError
from headrace.cli.lookup import Bounds, Partition
from headrace.cli.session import Session

__all__ = ["holds_keys"]

_RECORDS = 50
_WAIT_S = 5.0


def holds_keys(session: Session, bounds: Mapping[Partition, Bounds]) -> bool:
    filled = {one: limits for one, limits in bounds.items() if limits.end > limits.start}
    if not filled:
        return False
    consumer = open_consumer(
        session,
        {
            "group.id": "headrace-keys",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "max.partition.fetch.bytes": 65_536,
            "fetch.wait.max.ms": 50,
        },
    )
    try:
        first = {one: limits.start for one, limits in filled.items()}
        last = {one: max(limits.start, limits.end - _RECORDS) for one, limits in filled.items()}
        return any(_reads_key(consumer, places) for places in ([first] if first == last else [first, last]))
    finally:
        consumer.close()


def _reads_key(consumer: Any, places: Mapping[Partition, int]) -> bool:
    consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in places.items()])
    left = dict.fromkeys(places, _RECORDS)
    while left:
        message: Any = consumer.poll(_WAIT_S)
        if message is None:
            # Whatever is there could not be read: better to ask for --force than to break an order in silence.
            return True
        place = (message.topic(), message.partition())
        if message.error() is not None:
            if not _is_end(message.error()):
                raise CliError(f"looking for keys failed: {message.error().str()}")
            left.pop(place, None)
            continue
        if message.key() is not None:
            return True
        if place in left:
            left[place] -= 1
            if not left[place]:
                del left[place]
    return False


def _is_end(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)
