"""Reads the committed records of a topic with librdkafka, without any code of the product."""

from __future__ import annotations

import json
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

__all__ = ["committed", "committed_json", "headers_of"]


def committed(bootstrap: str, topic: str) -> list[Message]:
    """Return all records, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            # librdkafka reports the end of a partition only after a fetch has waited without a result.
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        partitions = set(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        messages: list[Message] = []
        while partitions:
            message = consumer.poll(30)
            assert message is not None, f"the end of {partitions} of {topic} was not reached within 30 s"
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                partitions.discard(message.partition())
        return messages
    finally:
        consumer.close()


def committed_json(bootstrap: str, topic: str) -> list[Any]:
    """Return the values of all records, parsed as JSON."""
    return [json.loads(message.value() or b"null") for message in committed(bootstrap, topic)]


def headers_of(message: Message) -> dict[str, bytes]:
    headers: Any = message.headers() or []
    return dict(headers)
