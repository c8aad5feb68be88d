"""A transactional producer with one interface for all client libraries. A refused call raises Kafka's error code."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer as LibConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as LibProducer
from confluent_kafka import TopicPartition as LibPartition

from faults.clients import Client
from faults.clients.aio import AiokafkaClient
from faults.clients.java import JavaClient, triples
from faults.clients.java import encode_base64 as packed  # The digests of the recordings contain this name.
from faults.clients.kafka_python import KafkaProducer, KafkaPythonClient, OffsetAndMetadata, checked
from faults.clients.kafka_python import TopicPartition as PyPartition
from faults.clients.librdkafka import LibrdkafkaClient
from faults.clients.port import Partition, Refused

__all__ = ["FENCED", "Transactional", "open_transactional"]

#: The error of a fenced producer. librdkafka has its own code for it.
FENCED = {47, 90, KafkaError._FENCED}
_names = itertools.count()


class Transactional(ABC):
    """A transactional producer. The constructor initialises its transactional id (InitProducerId)."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Send the values, and return when the server has acknowledged them."""

    @abstractmethod
    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Transactional:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LibrdkafkaTransactional(Transactional):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self.bootstrap = bootstrap
        self.inner = LibProducer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._checked(self.inner.init_transactions, 60)

    @staticmethod
    def _checked(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except KafkaException as failed:
            error = failed.args[0]
            raise Refused(error.code(), error.str()) from failed

    def begin(self) -> None:
        self._checked(self.inner.begin_transaction)

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self._checked(self.inner.produce, topic, value, None, partition)
        # If the broker refuses a record, the transaction fails. If flush does not raise the error, commit does.
        self._checked(self.inner.flush, 60)

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        consumer = LibConsumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        try:
            positions = [LibPartition(topic, index, at) for (topic, index), at in offsets.items()]
            group_metadata = consumer.consumer_group_metadata()
            self._checked(self.inner.send_offsets_to_transaction, positions, group_metadata, 60)
        finally:
            consumer.close()

    def commit(self) -> None:
        self._checked(self.inner.commit_transaction, 60)

    def abort(self) -> None:
        self._checked(self.inner.abort_transaction, 60)

    def close(self) -> None:
        self.inner.purge()


class JavaTransactional(Transactional):
    def __init__(self, client: JavaClient, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self.driver = client.driver
        self.name = f"transactional-{next(_names)}"
        config = {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": str(timeout_ms),
            "max.block.ms": "60000",
            "retry.backoff.ms": "10",
            "reconnect.backoff.max.ms": "500",
        }
        self.call("open", config=config)
        self.call("init")

    def call(self, op: str, **arguments: Any) -> Any:
        return self.driver.call(f"producer.{op}", on=self.name, **arguments)

    def begin(self) -> None:
        self.call("begin")

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        records = [
            {
                "topic": topic,
                "partition": partition,
                "timestamp": None,
                "key": None,
                "value": packed(value),
            }
            for value in values
        ]
        for result in self.call("send", records=records):
            if "error" in result:
                raise Refused(result["error"], result["message"])

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        self.call("offsets", group=group, offsets=triples(offsets))

    def commit(self) -> None:
        self.call("commit")

    def abort(self) -> None:
        self.call("abort")

    def close(self) -> None:
        self.call("drop")


class AiokafkaTransactional(Transactional):
    def __init__(
        self, client: AiokafkaClient, bootstrap: str, transactional_id: str, timeout_ms: int
    ) -> None:
        self.loop = client.loop

        async def opened() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                retry_backoff_ms=20,
            )
            await producer.start()
            return producer

        self.inner = self.loop.run(opened())

    def begin(self) -> None:
        self.loop.run(self.inner.begin_transaction())

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self.loop.run(self.inner.send_and_wait(topic, value, partition=partition))

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        positions = {AioPartition(*target): at for target, at in offsets.items()}
        self.loop.run(self.inner.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self.loop.run(self.inner.commit_transaction())

    def abort(self) -> None:
        self.loop.run(self.inner.abort_transaction())

    def close(self) -> None:
        # A fenced producer raises the fencing error again when it is closed.
        with contextlib.suppress(Refused):
            self.loop.run(self.inner.stop())


class KafkaPythonTransactional(Transactional):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self.inner = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            retry_backoff_ms=20,
        )
        checked(self.inner.init_transactions)

    def begin(self) -> None:
        checked(self.inner.begin_transaction)

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        sent = [checked(self.inner.send, topic, value, partition=partition) for value in values]
        for future in sent:
            checked(future.get, timeout=60)

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        positions = {PyPartition(*target): OffsetAndMetadata(at, "", -1) for target, at in offsets.items()}
        checked(self.inner.send_offsets_to_transaction, positions, group)

    def commit(self) -> None:
        checked(self.inner.commit_transaction)

    def abort(self) -> None:
        checked(self.inner.abort_transaction)

    def close(self) -> None:
        self.inner.close(timeout=0)


def open_transactional(
    client: Client, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000
) -> Transactional:
    """Open a producer that takes over the transactional id."""
    match client:
        case LibrdkafkaClient():
            return LibrdkafkaTransactional(bootstrap, transactional_id, timeout_ms)
        case JavaClient():
            return JavaTransactional(client, bootstrap, transactional_id, timeout_ms)
        case AiokafkaClient():
            return AiokafkaTransactional(client, bootstrap, transactional_id, timeout_ms)
        case KafkaPythonClient():
            return KafkaPythonTransactional(bootstrap, transactional_id, timeout_ms)
    raise AssertionError(f"{client.name} has no transactions")
