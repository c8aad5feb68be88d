"""What a stock reader of committed records finds in a topic."""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

__all__ = ["committed"]


def committed(bootstrap: str, topic: str) -> list[Message]:
    """All of them, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            # The end of a topic is told when the broker has waited for more.
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        partitions = set(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        while partitions:
            message = consumer.poll(30)
            assert message is not None, f"{topic} did not end"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                partitions.discard(message.partition())
        return found
    finally:
        consumer.close()
