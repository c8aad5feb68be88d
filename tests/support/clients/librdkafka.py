"""confluent-kafka 2, that is librdkafka: the client of most languages outside the JVM."""

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
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.clients.face import END, START, Admin, Client, Consumer, Offsets, Partition, Record, Seen
from tests.support.refused import Refused

__all__ = ["LibrdkafkaClient"]

PLACES = {START: OFFSET_BEGINNING, END: OFFSET_END}
ASSIGNORS = {"range": "range", "cooperative": "cooperative-sticky"}

# Errors that a consumer reports and goes on from: its topic is not there (yet, or any more).
PASSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


def refused(error: KafkaError) -> Refused:
    """The server's number. Where librdkafka gives the reason in words only, the words are looked at."""
    if error.code() == KafkaError._AUTO_OFFSET_RESET and "Offset out of range" in error.str():
        return Refused(KafkaError.OFFSET_OUT_OF_RANGE, error.str())
    if error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return Refused(KafkaError.UNKNOWN_TOPIC_OR_PART, error.str())
    return Refused(error.code(), error.str())


def result(future: Any) -> Any:
    try:
        return future.result(20)
    except KafkaException as failed:
        raise refused(failed.args[0]) from failed


class LibrdkafkaConsumer(Consumer):
    def __init__(self, config: dict[str, Any]) -> None:
        self.problems = []
        self.inner = LibConsumer(config, logger=None)
        self.told: list[tuple[str, list[Partition]]] = []

    def _listener(self, what: str) -> Any:
        def note(_: LibConsumer, partitions: list[TopicPartition]) -> None:
            self.told.append((what, sorted((one.topic, one.partition) for one in partitions)))

        return note

    def _callbacks(self) -> dict[str, Any]:
        return {
            f"on_{w}": self._listener(n)
            for w, n in (("assign", "assigned"), ("revoke", "revoked"), ("lost", "lost"))
        }

    def subscribe(self, *topics: str) -> None:
        self.inner.subscribe(list(topics), **self._callbacks())

    def subscribe_pattern(self, pattern: str) -> None:
        self.inner.subscribe([pattern], **self._callbacks())

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        # Without knowing the leaders yet, librdkafka would wait half a second before it asks for offsets.
        for topic in {topic for topic, _ in offsets}:
            self.inner.list_topics(topic, timeout=15)
        self.inner.assign(
            [
                TopicPartition(topic, index, PLACES.get(offset, offset))
                for (topic, index), offset in offsets.items()
            ]
        )

    def poll(self, timeout_s: float = 0.05) -> list[Seen]:
        """Wait for the first record only, then take what is already there, as the other clients do."""
        messages: list[Message] = []
        first = self.inner.poll(timeout_s)
        if first is not None:
            messages = [first, *self.inner.consume(500, 0.01)]
        seen = []
        for message in messages:
            error = message.error()
            if error is None:
                seen.append(self._seen(message))
            elif error.code() in PASSING:
                self.problems.append(refused(error).code)
            else:
                raise refused(error)
        return seen

    @staticmethod
    def _seen(message: Message) -> Seen:
        kind, timestamp = message.timestamp()
        headers: Any = tuple(message.headers() or [])
        append_time = kind == TIMESTAMP_LOG_APPEND_TIME
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        key, value = message.key(), message.value()
        return Seen(topic, partition, offset, key, value, headers, timestamp, append_time)

    def assignment(self) -> set[Partition]:
        return {(one.topic, one.partition) for one in self.inner.assignment()}

    def events(self) -> list[tuple[str, list[Partition]]]:
        told, self.told = self.told, []
        return told

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        try:
            if offsets is None:
                done = self.inner.commit(asynchronous=False)
            else:
                wanted = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
                done = self.inner.commit(offsets=wanted, asynchronous=False)
        except KafkaException as failed:
            raise refused(failed.args[0]) from failed
        for one in done:
            if one.error is not None:
                raise refused(one.error)

    def committed(self, *partitions: Partition) -> dict[Partition, int | None]:
        found = self.inner.committed([TopicPartition(*partition) for partition in partitions], timeout=15)
        return {
            (one.topic, one.partition): None if one.offset == OFFSET_INVALID else one.offset for one in found
        }

    def seek(self, partition: Partition, offset: int) -> None:
        self.inner.seek(TopicPartition(*partition, PLACES.get(offset, offset)))

    def pause(self, *partitions: Partition) -> None:
        self.inner.pause([TopicPartition(*partition) for partition in partitions])

    def resume(self, *partitions: Partition) -> None:
        self.inner.resume([TopicPartition(*partition) for partition in partitions])

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        asked = [TopicPartition(topic, index, at) for (topic, index), at in times.items()]
        found = self.inner.offsets_for_times(asked, timeout=15)
        return {(one.topic, one.partition): None if one.offset == OFFSET_END else one.offset for one in found}

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
        result(self.inner.create_topics([wanted], validate_only=validate)[topic])

    def delete_topic(self, topic: str) -> None:
        result(self.inner.delete_topics([topic])[topic])

    def create_partitions(self, topic: str, total: int) -> None:
        result(self.inner.create_partitions([NewPartitions(topic, total)])[topic])

    def topics(self) -> set[str]:
        return set(self.inner.list_topics(timeout=15).topics)

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        found = result(self.inner.describe_topics(TopicCollection([topic]))[topic])
        return [
            {
                "partition": one.id,
                "leader": one.leader.id,
                "replicas": [node.id for node in one.replicas],
                "isr": [node.id for node in one.isr],
            }
            for one in found.partitions
        ]

    def configs(self, topic: str) -> dict[str, tuple[str, bool]]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = result(self.inner.describe_configs([resource])[resource])
        return {name: (entry.value, entry.is_default) for name, entry in found.items()}

    def alter_configs(self, topic: str, changes: Iterable[tuple[str, str, str | None]]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation])
            for operation, name, value in changes
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        result(self.inner.incremental_alter_configs([resource])[resource])

    def cluster(self) -> dict[str, Any]:
        found = result(self.inner.describe_cluster())
        return {
            "controller": found.controller.id,
            "nodes": [(node.id, node.host, node.port) for node in found.nodes],
        }

    def groups(self) -> set[str]:
        return {one.group_id for one in result(self.inner.list_consumer_groups()).valid}

    def describe_group(self, group: str) -> dict[str, Any]:
        found = result(self.inner.describe_consumer_groups([group])[group])
        return {
            "state": found.state.name.title().replace("_", ""),
            "assignor": found.partition_assignor,
            "members": sorted(
                (
                    member.client_id,
                    sorted((one.topic, one.partition) for one in member.assignment.topic_partitions),
                )
                for member in found.members
            ),
        }

    def group_offsets(self, group: str) -> Offsets:
        asked = [ConsumerGroupTopicPartitions(group)]
        found = result(self.inner.list_consumer_group_offsets(asked)[group])
        return {(one.topic, one.partition): one.offset for one in found.topic_partitions}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        wanted = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
        asked = [ConsumerGroupTopicPartitions(group, wanted)]
        done = result(self.inner.alter_consumer_group_offsets(asked)[group])
        for one in done.topic_partitions:
            if one.error is not None:
                raise refused(one.error)

    def delete_group(self, group: str) -> None:
        result(self.inner.delete_consumer_groups([group])[group])

    def delete_records(self, offsets: Mapping[Partition, int]) -> Offsets:
        wanted = [TopicPartition(topic, index, at) for (topic, index), at in offsets.items()]
        done = self.inner.delete_records(wanted)
        return {(one.topic, one.partition): result(future).low_watermark for one, future in done.items()}

    def list_offset(self, partition: Partition, spec: str | int) -> int:
        named: dict[str, Any] = {
            "earliest": OffsetSpec.earliest(),
            "latest": OffsetSpec.latest(),
            "max_timestamp": OffsetSpec.max_timestamp(),
        }
        wanted = named[spec] if isinstance(spec, str) else OffsetSpec.for_timestamp(spec)
        (found,) = self.inner.list_offsets({TopicPartition(*partition): wanted}).values()
        offset: int = result(found).offset
        return offset

    def close(self) -> None:
        """librdkafka's handle closes when it is let go."""
        del self.inner


class LibrdkafkaClient(Client):
    name = "librdkafka"
    can = frozenset({"cooperative", "incremental", "group_admin", "list_offset", "null_headers"})

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: int = -1,
        codec: str = "none",
        idempotent: bool = False,
        request_bytes_max: int = 1_000_000,
    ) -> list[tuple[int, int]]:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "message.max.bytes": request_bytes_max,
                "message.timeout.ms": 20_000,
                "log_level": 0,
            }
        )
        outcomes: list[tuple[int, int] | KafkaError] = [(-1, -1)] * len(records)

        def delivered(index: int) -> Any:
            def note(error: KafkaError | None, message: Message) -> None:
                # Without acknowledgements librdkafka reports the place as unknown.
                offset = message.offset()
                place: Any = (message.partition(), -1 if offset is None or offset < 0 else offset)
                outcomes[index] = place if error is None else error

            return note

        for index, record in enumerate(records):
            place: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
            at: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            headers: Any = list(record.headers)
            try:
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    headers=headers,
                    on_delivery=delivered(index),
                    **place,
                    **at,
                )
            except KafkaException as failed:
                raise refused(failed.args[0]) from failed
        deadline = time.monotonic() + 25
        while producer.flush(1) and time.monotonic() < deadline:
            pass
        for outcome in outcomes:
            if isinstance(outcome, KafkaError):
                raise refused(outcome)
        return [outcome for outcome in outcomes if not isinstance(outcome, KafkaError)]

    def consumer(
        self,
        bootstrap: str,
        group: str | None = None,
        *,
        reset: str = "earliest",
        assignor: str = "range",
        instance: str | None = None,
        max_wait_ms: int = 100,
        session_ms: int = 30_000,
        heartbeat_ms: int = 100,
        committed: bool = False,
    ) -> Consumer:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": "wire",
            # librdkafka wants a name even where no group is meant.
            "group.id": "none" if group is None else group,
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": max_wait_ms,
            "socket.timeout.ms": max_wait_ms + 20_000,
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": heartbeat_ms,
            "topic.metadata.refresh.interval.ms": 300,
            "partition.assignment.strategy": ASSIGNORS[assignor],
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "log_level": 0,
        }
        if instance is not None:
            config["group.instance.id"] = instance
        return LibrdkafkaConsumer(config)

    def open_admin(self, bootstrap: str) -> Admin:
        return LibrdkafkaAdmin(bootstrap)
