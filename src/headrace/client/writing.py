"""A single record, in the log when this returns."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message

from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka

__all__ = ["write"]


def write(cluster: Cluster, topic: str, key: str, value: bytes | None, doing: str) -> None:
    """``doing`` says in an error what it was for."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = cluster.producer({"linger.ms": 0, "message.timeout.ms": int(cluster.timeout_s * 1_000)})
    producer.produce(topic, key=key, value=value, on_delivery=delivered)
    producer.flush(cluster.timeout_s + 1)
    if failed:
        raise from_kafka(failed[0], doing)
