"""kafka-python 3: the client in pure Python."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

# The package reads its message definitions by a call that Python has deprecated; that is its own affair.
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

from tests.support.clients.face import (
    END,
    START,
    Admin,
    Client,
    Consumer,
    Offsets,
    Partition,
    Record,
    Seen,
    seen_in,
)
from tests.support.refused import Refused

__all__ = ["KafkaPythonClient"]


class ForgottenSocket(socket.socket):
    """Closed without a word when it is collected: the client drops a connection that it is about to make, or still has
    something to send on, when it is closed. Where a warning is an error, a test that only runs later would fail."""

    def __del__(self) -> None:
        self.close()


def forgotten_socket(_: KafkaNetSocket, *kind: int) -> ForgottenSocket:
    return ForgottenSocket(*kind)


KafkaNetSocket.socket = forgotten_socket

ASSIGNORS = {"range": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}
T = TypeVar("T")


def number(error: type[BaseException] | BaseException) -> int:
    if isinstance(error, kafka_errors.CommitFailedError):
        return 25
    code = getattr(error, "errno", None)
    assert isinstance(code, int), f"{error!r} has no number"
    return code


def checked(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    try:
        return call(*arguments, **options)
    except kafka_errors.KafkaError as failed:
        raise Refused(number(failed), str(failed)) from failed


def by_name(text: str) -> int:
    """The number of an error that the client gives back as text, such as ``[Error 40] InvalidConfig…``."""
    if text.startswith("[Error "):
        return int(text[len("[Error ") :].split("]")[0])
    found = getattr(kafka_errors, text.split(":")[0])
    return number(found)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, told: list[tuple[str, list[Partition]]]) -> None:
        self.told = told

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.told.append(("assigned", sorted((one.topic, one.partition) for one in assigned)))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.told.append(("revoked", sorted((one.topic, one.partition) for one in revoked)))

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self.told.append(("lost", sorted((one.topic, one.partition) for one in lost)))


class KafkaPythonConsumer(Consumer):
    # This client loses a round of joining that a poll's end cuts in two, whatever the server.
    slice_s = 0.3

    def __init__(self, config: dict[str, Any]) -> None:
        self.problems = []
        self.told: list[tuple[str, list[Partition]]] = []
        self.inner = KafkaConsumer(**config)

    def subscribe(self, *topics: str) -> None:
        # Known before it joins, the partitions are shared out in the first round. The second round, which new
        # partitions set off, this client loses if a poll ends in the middle of it, whatever the server.
        for topic in topics:
            self.inner.partitions_for_topic(topic)
        self.inner.subscribe(topics=list(topics), listener=Listener(self.told))

    def subscribe_pattern(self, pattern: str) -> None:
        self.inner.subscribe(pattern=pattern, listener=Listener(self.told))

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        self.inner.assign([TopicPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self.seek(partition, offset)

    def poll(self, timeout_s: float = 0.05) -> list[Seen]:
        found = checked(self.inner.poll, timeout_ms=int(timeout_s * 1000))
        return seen_in(found)

    def assignment(self) -> set[Partition]:
        return {(one.topic, one.partition) for one in self.inner.assignment()}

    def events(self) -> list[tuple[str, list[Partition]]]:
        told = self.told[:]
        self.told.clear()
        return told

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        wanted = None
        if offsets is not None:
            wanted = {TopicPartition(*one): OffsetAndMetadata(at, "", -1) for one, at in offsets.items()}
        checked(self.inner.commit, wanted)

    def committed(self, *partitions: Partition) -> dict[Partition, int | None]:
        return {partition: self.inner.committed(TopicPartition(*partition)) for partition in partitions}

    def seek(self, partition: Partition, offset: int) -> None:
        place = TopicPartition(*partition)
        if offset == START:
            self.inner.seek_to_beginning(place)
        elif offset == END:
            self.inner.seek_to_end(place)
            # The client looks up the end when it next polls; asking for the position does it now.
            self.inner.position(place)
        else:
            self.inner.seek(place, offset)

    def pause(self, *partitions: Partition) -> None:
        self.inner.pause(*(TopicPartition(*partition) for partition in partitions))

    def resume(self, *partitions: Partition) -> None:
        self.inner.resume(*(TopicPartition(*partition) for partition in partitions))

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        asked = {TopicPartition(*one): at for one, at in times.items()}
        found = checked(self.inner.offsets_for_times, asked)
        return {(one.topic, one.partition): at.offset if at else None for one, at in found.items()}

    def bounds(self, partition: Partition) -> tuple[int, int]:
        place = TopicPartition(*partition)
        low = checked(self.inner.beginning_offsets, [place])[place]
        high = checked(self.inner.end_offsets, [place])[place]
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
        (found,) = self.inner.describe_topics([topic])
        if found["error_code"]:
            raise Refused(found["error_code"])
        return [
            {
                "partition": one["partition_index"],
                "leader": one["leader_id"],
                "replicas": one["replica_nodes"],
                "isr": one["isr_nodes"],
            }
            for one in found["partitions"]
        ]

    def configs(self, topic: str) -> dict[str, tuple[str, bool]]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = checked(self.inner.describe_configs, [resource], config_filter="all")["topic"][topic]
        return {
            name: (entry["value"], entry["config_source"] == "DEFAULT_CONFIG")
            for name, entry in found.items()
        }

    def alter_configs(self, topic: str, changes: Iterable[tuple[str, str, str | None]]) -> None:
        wanted = {name: (operation, value) for operation, name, value in changes}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=wanted)
        done = self.inner.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if done != "OK":
            raise Refused(by_name(done), done)

    def cluster(self) -> dict[str, Any]:
        found = self.inner.describe_cluster()
        nodes = [(node["broker_id"], node["host"], node["port"]) for node in found["brokers"]]
        return {"controller": found["controller_id"], "nodes": nodes}

    def groups(self) -> set[str]:
        return {one["group_id"] for one in self.inner.list_groups()}

    def describe_group(self, group: str) -> dict[str, Any]:
        found = self.inner.describe_groups([group])[group]
        if found["error"] is not None:
            raise Refused(by_name(found["error"]), found["error"])
        return {
            "state": found["group_state"],
            "assignor": found["protocol_data"],
            "members": sorted(
                (
                    member["client_id"],
                    sorted(
                        (one["topic"], index)
                        for one in (member["member_assignment"] or {"assigned_partitions": ()})[
                            "assigned_partitions"
                        ]
                        for index in one["partitions"]
                    ),
                )
                for member in found["members"]
            ),
        }

    def group_offsets(self, group: str) -> Offsets:
        found = self.inner.list_group_offsets(group)[group]
        return {(one.topic, one.partition): at.offset for one, at in found.items()}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        wanted = {TopicPartition(*one): OffsetAndMetadata(at, "", -1) for one, at in offsets.items()}
        for error in checked(self.inner.alter_group_offsets, group, wanted).values():
            if number(error):
                raise Refused(number(error))

    def delete_group_offsets(self, group: str, *partitions: Partition) -> None:
        wanted = [TopicPartition(*partition) for partition in partitions]
        for error in checked(self.inner.delete_group_offsets, group, wanted).values():
            if number(error):
                raise Refused(number(error))

    def delete_group(self, group: str) -> None:
        done = self.inner.delete_groups([group])[group]
        if done != "OK":
            raise Refused(by_name(done), done)

    def delete_records(self, offsets: Mapping[Partition, int]) -> Offsets:
        wanted = {TopicPartition(*partition): at for partition, at in offsets.items()}
        done = checked(self.inner.delete_records, wanted)
        return {(one.topic, one.partition): answer["low_watermark"] for one, answer in done.items()}

    def list_offset(self, partition: Partition, spec: str | int) -> int:
        place = TopicPartition(*partition)
        wanted = OffsetSpec[spec.upper()] if isinstance(spec, str) else spec
        found = checked(self.inner.list_partition_offsets, {place: wanted})
        offset: int = found[place].offset
        return offset

    def log_dirs(self, topic: str) -> dict[int, int]:
        return {
            partition["partition_index"]: partition["partition_size"]
            for broker in self.inner.describe_log_dirs([topic])
            for directory in broker["log_dirs"]
            for found in directory["topics"]
            for partition in found["partitions"]
        }

    def close(self) -> None:
        self.inner.close()


class KafkaPythonClient(Client):
    name = "kafka-python"
    can = frozenset(
        {"cooperative", "incremental", "group_admin", "delete_group_offsets", "log_dirs", "list_offset"}
    )

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
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=request_bytes_max,
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
        return [(one.partition, one.offset) for one in done]

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
        return KafkaPythonConsumer(
            {
                "bootstrap_servers": bootstrap,
                "client_id": "wire",
                "group_id": group,
                "group_instance_id": instance,
                "auto_offset_reset": {"error": "none"}.get(reset, reset),
                "enable_auto_commit": False,
                "fetch_max_wait_ms": max_wait_ms,
                "session_timeout_ms": session_ms,
                "heartbeat_interval_ms": heartbeat_ms,
                "metadata_max_age_ms": 500,
                "retry_backoff_ms": 50,
                "partition_assignment_strategy": [ASSIGNORS[assignor]],
                "isolation_level": "read_committed" if committed else "read_uncommitted",
            }
        )

    def open_admin(self, bootstrap: str) -> Admin:
        return KafkaPythonAdmin(bootstrap)
