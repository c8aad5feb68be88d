"""The adapter of kafka-python 3, a client in pure Python."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

# The package reads its message definitions with a deprecated function of Python, so its import warns.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka import errors as kafka_errors
    from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
    from kafka.consumer.subscription_state import ConsumerRebalanceListener
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.net.inet import KafkaNetSocket
    from kafka.structs import OffsetAndMetadata

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
    consumed_records,
)

__all__ = ["KafkaPythonClient"]


class QuietSocket(socket.socket):
    """A socket that closes without a ``ResourceWarning`` when it is garbage collected. On close, the client
    leaves connecting sockets and sockets with unsent data to the garbage collector. Warnings are errors in tests, so a
    later test would fail.
    """

    def __del__(self) -> None:
        self.close()


def open_quiet_socket(_: KafkaNetSocket, *kind: int) -> QuietSocket:
    return QuietSocket(*kind)


KafkaNetSocket.socket = open_quiet_socket

ASSIGNORS = {"range": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}
T = TypeVar("T")


def error_code(error: type[BaseException] | BaseException) -> int:
    if isinstance(error, kafka_errors.CommitFailedError):
        return 25
    code = getattr(error, "errno", None)
    assert isinstance(code, int), f"{error!r} has no error code"
    return code


def checked(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    try:
        return call(*arguments, **options)
    except kafka_errors.KafkaError as failed:
        raise Refused(error_code(failed), str(failed)) from failed


def code_of_text(text: str) -> int:
    """Return the code of an error that the client reports as text, such as ``[Error 40] InvalidConfig…``."""
    if text.startswith("[Error "):
        return int(text[len("[Error ") :].split("]")[0])
    error_class = getattr(kafka_errors, text.split(":")[0])
    return error_code(error_class)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, changes: list[tuple[str, list[Partition]]]) -> None:
        self._changes = changes

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._changes.append(
            ("assigned", sorted((partition.topic, partition.partition) for partition in assigned))
        )

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._changes.append(
            ("revoked", sorted((partition.topic, partition.partition) for partition in revoked))
        )

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._changes.append(("lost", sorted((partition.topic, partition.partition) for partition in lost)))


class KafkaPythonConsumer(Consumer):
    # With every broker, this client abandons a join if poll() returns before the join ends.
    poll_timeout_s = 0.3

    def __init__(self, config: dict[str, Any]) -> None:
        self.problems = []
        self._changes: list[tuple[str, list[Partition]]] = []
        self.inner = KafkaConsumer(**config)

    def subscribe(self, *topics: str) -> None:
        # Partitions that are known before the client joins are assigned in the first round. Partitions that
        # it discovers later start a second rebalance. With every broker, this client fails if poll() returns
        # during the second rebalance.
        for topic in topics:
            self.inner.partitions_for_topic(topic)
        self.inner.subscribe(topics=list(topics), listener=Listener(self._changes))

    def subscribe_pattern(self, pattern: str) -> None:
        self.inner.subscribe(pattern=pattern, listener=Listener(self._changes))

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        self.inner.assign([TopicPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self.seek(partition, offset)

    def poll(self, timeout_s: float = 0.05) -> list[ConsumedRecord]:
        polled = checked(self.inner.poll, timeout_ms=int(timeout_s * 1000))
        return consumed_records(polled)

    def assignment(self) -> set[Partition]:
        return {(partition.topic, partition.partition) for partition in self.inner.assignment()}

    def events(self) -> list[tuple[str, list[Partition]]]:
        changes = self._changes[:]
        self._changes.clear()
        return changes

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        offsets_to_commit = None
        if offsets is not None:
            offsets_to_commit = {
                TopicPartition(*partition): OffsetAndMetadata(at, "", -1) for partition, at in offsets.items()
            }
        checked(self.inner.commit, offsets_to_commit)

    def committed(self, *partitions: Partition) -> dict[Partition, int | None]:
        return {partition: self.inner.committed(TopicPartition(*partition)) for partition in partitions}

    def seek(self, partition: Partition, offset: int) -> None:
        topic_partition = TopicPartition(*partition)
        if offset == START:
            self.inner.seek_to_beginning(topic_partition)
        elif offset == END:
            self.inner.seek_to_end(topic_partition)
            # The client seeks to the end only at its next poll. A query for the position makes it seek now.
            self.inner.position(topic_partition)
        else:
            self.inner.seek(topic_partition, offset)

    def pause(self, *partitions: Partition) -> None:
        self.inner.pause(*(TopicPartition(*partition) for partition in partitions))

    def resume(self, *partitions: Partition) -> None:
        self.inner.resume(*(TopicPartition(*partition) for partition in partitions))

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        requested = {TopicPartition(*partition): at for partition, at in times.items()}
        offsets = checked(self.inner.offsets_for_times, requested)
        return {
            (partition.topic, partition.partition): at.offset if at else None
            for partition, at in offsets.items()
        }

    def bounds(self, partition: Partition) -> tuple[int, int]:
        topic_partition = TopicPartition(*partition)
        low = checked(self.inner.beginning_offsets, [topic_partition])[topic_partition]
        high = checked(self.inner.end_offsets, [topic_partition])[topic_partition]
        return low, high

    def close(self) -> None:
        self.inner.close(autocommit=False, timeout_ms=5000)


class KafkaPythonAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self.inner = KafkaAdminClient(bootstrap_servers=bootstrap, retry_backoff_ms=50)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate: bool = False,
    ) -> None:
        wanted = {
            "num_partitions": partitions,
            "replication_factor": replication,
            "configs": dict(configs or {}),
        }
        checked(self.inner.create_topics, {topic: wanted}, validate_only=validate)

    def delete_topic(self, topic: str) -> None:
        checked(self.inner.delete_topics, [topic])

    def create_partitions(self, topic: str, total: int) -> None:
        checked(self.inner.create_partitions, {topic: total})

    def topics(self) -> set[str]:
        return set(self.inner.list_topics())

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        (description,) = self.inner.describe_topics([topic])
        if description["error_code"]:
            raise Refused(description["error_code"])
        return [
            {
                "partition": partition["partition_index"],
                "leader": partition["leader_id"],
                "replicas": partition["replica_nodes"],
                "isr": partition["isr_nodes"],
            }
            for partition in description["partitions"]
        ]

    def configs(self, topic: str) -> dict[str, tuple[str, bool]]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        configs = checked(self.inner.describe_configs, [resource], config_filter="all")["topic"][topic]
        return {
            name: (entry["value"], entry["config_source"] == "DEFAULT_CONFIG")
            for name, entry in configs.items()
        }

    def alter_configs(self, topic: str, changes: Iterable[tuple[str, str, str | None]]) -> None:
        wanted = {name: (operation, value) for operation, name, value in changes}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=wanted)
        done = self.inner.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if done != "OK":
            raise Refused(code_of_text(done), done)

    def cluster(self) -> dict[str, Any]:
        cluster = self.inner.describe_cluster()
        nodes = [(node["broker_id"], node["host"], node["port"]) for node in cluster["brokers"]]
        return {"controller": cluster["controller_id"], "nodes": nodes}

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self.inner.list_groups()}

    def describe_group(self, group: str) -> dict[str, Any]:
        described = self.inner.describe_groups([group])[group]
        if described["error"] is not None:
            raise Refused(code_of_text(described["error"]), described["error"])
        return {
            "state": described["group_state"],
            "assignor": described["protocol_data"],
            "members": sorted(
                (
                    member["client_id"],
                    sorted(
                        (topic["topic"], index)
                        for topic in (member["member_assignment"] or {"assigned_partitions": ()})[
                            "assigned_partitions"
                        ]
                        for index in topic["partitions"]
                    ),
                )
                for member in described["members"]
            ),
        }

    def group_offsets(self, group: str) -> Offsets:
        offsets = self.inner.list_group_offsets(group)[group]
        return {(partition.topic, partition.partition): at.offset for partition, at in offsets.items()}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        wanted = {
            TopicPartition(*partition): OffsetAndMetadata(at, "", -1) for partition, at in offsets.items()
        }
        for error in checked(self.inner.alter_group_offsets, group, wanted).values():
            if error_code(error):
                raise Refused(error_code(error))

    def delete_group_offsets(self, group: str, *partitions: Partition) -> None:
        wanted = [TopicPartition(*partition) for partition in partitions]
        for error in checked(self.inner.delete_group_offsets, group, wanted).values():
            if error_code(error):
                raise Refused(error_code(error))

    def delete_group(self, group: str) -> None:
        done = self.inner.delete_groups([group])[group]
        if done != "OK":
            raise Refused(code_of_text(done), done)

    def delete_records(self, offsets: Mapping[Partition, int]) -> Offsets:
        wanted = {TopicPartition(*partition): at for partition, at in offsets.items()}
        done = checked(self.inner.delete_records, wanted)
        return {
            (partition.topic, partition.partition): answer["low_watermark"]
            for partition, answer in done.items()
        }

    def list_offset(self, partition: Partition, spec: str | int) -> int:
        topic_partition = TopicPartition(*partition)
        wanted = OffsetSpec[spec.upper()] if isinstance(spec, str) else spec
        listed = checked(self.inner.list_partition_offsets, {topic_partition: wanted})
        offset: int = listed[topic_partition].offset
        return offset

    def log_dirs(self, topic: str) -> dict[int, int]:
        return {
            partition["partition_index"]: partition["partition_size"]
            for broker in self.inner.describe_log_dirs([topic])
            for directory in broker["log_dirs"]
            for description in directory["topics"]
            for partition in description["partitions"]
        }

    def close(self) -> None:
        self.inner.close()


class KafkaPythonClient(Client):
    name = "kafka-python"
    can = frozenset(
        {"cooperative", "incremental", "group_admin", "delete_group_offsets", "log_dirs", "list_offset"}
    )

    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], options: ProducerOptions
    ) -> list[tuple[int, int]]:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=options.acks,
            compression_type=None if options.codec == "none" else options.codec,
            enable_idempotence=options.idempotent,
            max_request_size=options.request_bytes_max,
            linger_ms=5,
            max_block_ms=15_000,
            delivery_timeout_ms=30_000,
            request_timeout_ms=15_000,
            retry_backoff_ms=50,
        )
        try:
            sent = [
                checked(
                    producer.send,
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            done = [checked(future.get, 30) for future in sent]
        finally:
            producer.close(10)
        return [(report.partition, report.offset) for report in done]

    def open_consumer(self, bootstrap: str, group: str | None, options: ConsumerOptions) -> Consumer:
        return KafkaPythonConsumer(
            {
                "bootstrap_servers": bootstrap,
                "client_id": "wire",
                "group_id": group,
                "group_instance_id": options.instance,
                "auto_offset_reset": {"error": "none"}.get(options.reset, options.reset),
                "enable_auto_commit": False,
                "fetch_max_wait_ms": options.max_wait_ms,
                "session_timeout_ms": options.session_ms,
                "heartbeat_interval_ms": options.heartbeat_ms,
                "metadata_max_age_ms": 500,
                "retry_backoff_ms": 50,
                "partition_assignment_strategy": [ASSIGNORS[options.assignor]],
                "isolation_level": "read_committed" if options.committed else "read_uncommitted",
            }
        )

    def open_admin(self, bootstrap: str) -> Admin:
        return KafkaPythonAdmin(bootstrap)
