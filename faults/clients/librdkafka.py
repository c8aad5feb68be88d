"""The adapter of confluent-kafka 2, which wraps librdkafka, the client of most languages outside the JVM."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    TIMESTAMP_LOG_APPEND_TIME,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Consumer as LibConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from faults.clients.port import (
    END,
    START,
    Admin,
    Client,
    ConsumedRecord,
    Consumer,
    ConsumerOptions,
    Offsets,
    Partition,
    ProducerOptions,
    Record,
    Refused,
)

__all__ = ["LibrdkafkaClient"]

OFFSET_OF = {START: OFFSET_BEGINNING, END: OFFSET_END}
ASSIGNORS = {"range": "range", "cooperative": "cooperative-sticky"}

# Errors that a consumer reports and survives: its topic does not exist yet, or does not exist any more.
TRANSIENT = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


def to_refused(error: KafkaError) -> Refused:
    """Convert the error to ``Refused`` with the broker's error code. librdkafka replaces some of the broker's codes
    with its own.
    """
    if error.code() == KafkaError._AUTO_OFFSET_RESET and "Offset out of range" in error.str():
        return Refused(KafkaError.OFFSET_OUT_OF_RANGE, error.str())
    if error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return Refused(KafkaError.UNKNOWN_TOPIC_OR_PART, error.str())
    return Refused(error.code(), error.str())


def result_of(future: Any) -> Any:
    try:
        return future.result(20)
    except KafkaException as failed:
        raise to_refused(failed.args[0]) from failed


class LibrdkafkaConsumer(Consumer):
    def __init__(self, config: dict[str, Any]) -> None:
        self.problems = []
        self.inner = LibConsumer(config, logger=None)
        self._changes: list[tuple[str, list[Partition]]] = []

    def _listener(self, what: str) -> Any:
        def record_change(_: LibConsumer, partitions: list[TopicPartition]) -> None:
            self._changes.append(
                (what, sorted((partition.topic, partition.partition) for partition in partitions))
            )

        return record_change

    def _callbacks(self) -> dict[str, Any]:
        return {
            f"on_{event}": self._listener(change)
            for event, change in (("assign", "assigned"), ("revoke", "revoked"), ("lost", "lost"))
        }

    def subscribe(self, *topics: str) -> None:
        self.inner.subscribe(list(topics), **self._callbacks())

    def subscribe_pattern(self, pattern: str) -> None:
        self.inner.subscribe([pattern], **self._callbacks())

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        # If librdkafka does not know the leaders, it waits half a second before it requests offsets.
        for topic in {topic for topic, _ in offsets}:
            self.inner.list_topics(topic, timeout=15)
        self.inner.assign(
            [
                TopicPartition(topic, index, OFFSET_OF.get(offset, offset))
                for (topic, index), offset in offsets.items()
            ]
        )

    def poll(self, timeout_s: float = 0.05) -> list[ConsumedRecord]:
        """Wait only for the first record, then return all records that have arrived, as the other clients do."""
        messages: list[Message] = []
        first = self.inner.poll(timeout_s)
        if first is not None:
            messages = [first, *self.inner.consume(500, 0.01)]
        seen = []
        for message in messages:
            error = message.error()
            if error is None:
                seen.append(self._seen(message))
            elif error.code() in TRANSIENT:
                self.problems.append(to_refused(error).code)
            else:
                raise to_refused(error)
        return seen

    @staticmethod
    def _seen(message: Message) -> ConsumedRecord:
        kind, timestamp = message.timestamp()
        headers: Any = tuple(message.headers() or [])
        append_time = kind == TIMESTAMP_LOG_APPEND_TIME
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        key, value = message.key(), message.value()
        return ConsumedRecord(topic, partition, offset, key, value, headers, timestamp, append_time)

    def assignment(self) -> set[Partition]:
        return {(partition.topic, partition.partition) for partition in self.inner.assignment()}

    def events(self) -> list[tuple[str, list[Partition]]]:
        changes, self._changes = self._changes, []
        return changes

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        try:
            if offsets is None:
                done = self.inner.commit(asynchronous=False)
            else:
                wanted = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
                done = self.inner.commit(offsets=wanted, asynchronous=False)
        except KafkaException as failed:
            raise to_refused(failed.args[0]) from failed
        for partition in done:
            if partition.error is not None:
                raise to_refused(partition.error)

    def committed(self, *partitions: Partition) -> dict[Partition, int | None]:
        offsets = self.inner.committed([TopicPartition(*partition) for partition in partitions], timeout=15)
        return {
            (partition.topic, partition.partition): None
            if partition.offset == OFFSET_INVALID
            else partition.offset
            for partition in offsets
        }

    def seek(self, partition: Partition, offset: int) -> None:
        self.inner.seek(TopicPartition(*partition, OFFSET_OF.get(offset, offset)))

    def pause(self, *partitions: Partition) -> None:
        self.inner.pause([TopicPartition(*partition) for partition in partitions])

    def resume(self, *partitions: Partition) -> None:
        self.inner.resume([TopicPartition(*partition) for partition in partitions])

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        requested = [TopicPartition(topic, index, at) for (topic, index), at in times.items()]
        offsets = self.inner.offsets_for_times(requested, timeout=15)
        return {
            (partition.topic, partition.partition): None
            if partition.offset == OFFSET_END
            else partition.offset
            for partition in offsets
        }

    def bounds(self, partition: Partition) -> tuple[int, int]:
        low, high = self.inner.get_watermark_offsets(TopicPartition(*partition), timeout=15)
        return low, high

    def close(self) -> None:
        self.inner.close()


class LibrdkafkaAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self.inner = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate: bool = False,
    ) -> None:
        wanted = NewTopic(topic, partitions, replication, config=dict(configs or {}))
        result_of(self.inner.create_topics([wanted], validate_only=validate)[topic])

    def delete_topic(self, topic: str) -> None:
        result_of(self.inner.delete_topics([topic])[topic])

    def create_partitions(self, topic: str, total: int) -> None:
        result_of(self.inner.create_partitions([NewPartitions(topic, total)])[topic])

    def topics(self) -> set[str]:
        return set(self.inner.list_topics(timeout=15).topics)

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        described = result_of(self.inner.describe_topics(TopicCollection([topic]))[topic])
        return [
            {
                "partition": partition.id,
                "leader": partition.leader.id,
                "replicas": [node.id for node in partition.replicas],
                "isr": [node.id for node in partition.isr],
            }
            for partition in described.partitions
        ]

    def configs(self, topic: str) -> dict[str, tuple[str, bool]]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        configs = result_of(self.inner.describe_configs([resource])[resource])
        return {name: (entry.value, entry.is_default) for name, entry in configs.items()}

    def alter_configs(self, topic: str, changes: Iterable[tuple[str, str, str | None]]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation])
            for operation, name, value in changes
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        result_of(self.inner.incremental_alter_configs([resource])[resource])

    def cluster(self) -> dict[str, Any]:
        cluster = result_of(self.inner.describe_cluster())
        return {
            "controller": cluster.controller.id,
            "nodes": [(node.id, node.host, node.port) for node in cluster.nodes],
        }

    def groups(self) -> set[str]:
        return {group.group_id for group in result_of(self.inner.list_consumer_groups()).valid}

    def describe_group(self, group: str) -> dict[str, Any]:
        described = result_of(self.inner.describe_consumer_groups([group])[group])
        return {
            "state": described.state.name.title().replace("_", ""),
            "assignor": described.partition_assignor,
            "members": sorted(
                (
                    member.client_id,
                    sorted(
                        (topic_partition.topic, topic_partition.partition)
                        for topic_partition in member.assignment.topic_partitions
                    ),
                )
                for member in described.members
            ),
        }

    def group_offsets(self, group: str) -> Offsets:
        requested = [ConsumerGroupTopicPartitions(group)]
        listed = result_of(self.inner.list_consumer_group_offsets(requested)[group])
        return {
            (topic_partition.topic, topic_partition.partition): topic_partition.offset
            for topic_partition in listed.topic_partitions
        }

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        wanted = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
        requested = [ConsumerGroupTopicPartitions(group, wanted)]
        done = result_of(self.inner.alter_consumer_group_offsets(requested)[group])
        for topic_partition in done.topic_partitions:
            if topic_partition.error is not None:
                raise to_refused(topic_partition.error)

    def delete_group(self, group: str) -> None:
        result_of(self.inner.delete_consumer_groups([group])[group])

    def delete_records(self, offsets: Mapping[Partition, int]) -> Offsets:
        wanted = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
        done = self.inner.delete_records(wanted)
        return {
            (partition.topic, partition.partition): result_of(future).low_watermark
            for partition, future in done.items()
        }

    def list_offset(self, partition: Partition, spec: str | int) -> int:
        named: dict[str, Any] = {
            "earliest": OffsetSpec.earliest,
            "latest": OffsetSpec.latest,
            "max_timestamp": OffsetSpec.max_timestamp,
        }
        wanted = named[spec]() if isinstance(spec, str) else OffsetSpec.for_timestamp(spec)
        (found,) = self.inner.list_offsets({TopicPartition(*partition): wanted}).values()
        offset: int = result_of(found).offset
        return offset

    def close(self) -> None:
        """librdkafka closes its handle when it is garbage collected."""
        del self.inner


class LibrdkafkaClient(Client):
    name = "librdkafka"
    can = frozenset({"cooperative", "incremental", "group_admin", "list_offset", "null_headers"})

    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], options: ProducerOptions
    ) -> list[tuple[int, int]]:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": options.acks,
                "compression.type": options.codec,
                "enable.idempotence": options.idempotent,
                "message.max.bytes": options.request_bytes_max,
                "message.timeout.ms": 20_000,
                "log_level": 0,
            }
        )
        outcomes: list[tuple[int, int] | KafkaError] = [(-1, -1)] * len(records)

        def on_delivery_of(index: int) -> Any:
            def record_outcome(error: KafkaError | None, message: Message) -> None:
                # Without acknowledgements librdkafka reports no offset.
                offset = message.offset()
                written = (message.partition() or 0, -1 if offset is None or offset < 0 else offset)
                outcomes[index] = written if error is None else error

            return record_outcome

        for index, record in enumerate(records):
            target: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
            at: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            headers: Any = list(record.headers)
            try:
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    headers=headers,
                    on_delivery=on_delivery_of(index),
                    **target,
                    **at,
                )
            except KafkaException as failed:
                raise to_refused(failed.args[0]) from failed
        deadline = time.monotonic() + 25
        while producer.flush(1) and time.monotonic() < deadline:
            pass
        for outcome in outcomes:
            if isinstance(outcome, KafkaError):
                raise to_refused(outcome)
        return [outcome for outcome in outcomes if not isinstance(outcome, KafkaError)]

    def open_consumer(self, bootstrap: str, group: str | None, options: ConsumerOptions) -> Consumer:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": "wire",
            # librdkafka requires a group name even for a consumer without a group.
            "group.id": "none" if group is None else group,
            "auto.offset.reset": options.reset,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": options.max_wait_ms,
            "socket.timeout.ms": options.max_wait_ms + 20_000,
            "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": options.heartbeat_ms,
            "topic.metadata.refresh.interval.ms": 300,
            "partition.assignment.strategy": ASSIGNORS[options.assignor],
            "isolation.level": "read_committed" if options.committed else "read_uncommitted",
            "log_level": 0,
        }
        if options.instance is not None:
            config["group.instance.id"] = options.instance
        return LibrdkafkaConsumer(config)

    def open_admin(self, bootstrap: str) -> Admin:
        return LibrdkafkaAdmin(bootstrap)
