"""What any Kafka reader sees of a topic: committed records, with a client and settings of its own."""

from __future__ import annotations

import json
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

__all__ = ["committed", "folded", "headers", "values"]


def committed(bootstrap: str, topic: str) -> list[Message]:
    """All of them, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        open_ones = set(partitions)
        while open_ones:
            message = consumer.poll(30)
            assert message is not None, f"{topic} did not end"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                open_ones.discard(message.partition())
        return found
    finally:
        consumer.close()


def values(bootstrap: str, topic: str) -> list[Any]:
    return [json.loads(one.value()) for one in committed(bootstrap, topic)]


def folded(bootstrap: str, topic: str) -> dict[str, Any]:
    """The last value of each key; a null value deletes."""
    rows: dict[str, Any] = {}
    for one in committed(bootstrap, topic):
        key = one.key().decode()
        if one.value() is None:
            rows.pop(key, None)
        else:
            rows[key] = json.loads(one.value())
    return rows


def headers(message: Message) -> dict[str, str]:
    return {
        name.removeprefix("__headrace.errors."): value.decode() for name, value in message.headers() or []
    }
