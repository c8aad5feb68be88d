"""The adapter of aiokafka 0.14, an asyncio client. Its event loop runs in a thread, so scenarios need no coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

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

__all__ = ["AiokafkaClient"]

T = TypeVar("T")


class Loop:
    """An event loop that runs coroutines for other threads, and raises their errors as ``Refused``."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="aiokafka", daemon=True)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = 240.0) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)
        except kafka_errors.KafkaError as failed:
            raise Refused(error_code(failed), str(failed)) from failed

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def error_code(failed: BaseException) -> int:
    if isinstance(failed, kafka_errors.CommitFailedError):
        return 25
    if isinstance(failed, kafka_errors.ProducerFenced):
        # aiokafka raises this error for two error codes, with the same text, so the original code is unknown.
        return 90
    code = getattr(failed, "errno", None)
    assert isinstance(code, int), f"{failed!r} has no error code"
    return code


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


class AiokafkaConsumer(Consumer):
    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        self.problems = []
        self.loop = loop
        self._changes: list[tuple[str, list[Partition]]] = []

        async def open_consumer() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(**config)
            await consumer.start()
            return consumer

        self.inner = loop.run(open_consumer())

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def call() -> Any:
            return getattr(self.inner, method)(*arguments, **options)

        return self.loop.run(call())

    def subscribe(self, *topics: str) -> None:
        self._call("subscribe", topics=list(topics), listener=Listener(self._changes))

    def subscribe_pattern(self, pattern: str) -> None:
        self._call("subscribe", pattern=pattern, listener=Listener(self._changes))

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        self._call("assign", [TopicPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self.seek(partition, offset)

    def poll(self, timeout_s: float = 0.05) -> list[ConsumedRecord]:
        polled = self.loop.run(self.inner.getmany(timeout_ms=int(timeout_s * 1000)))
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
            offsets_to_commit = {TopicPartition(*partition): at for partition, at in offsets.items()}
        self.loop.run(self.inner.commit(offsets_to_commit))

    def committed(self, *partitions: Partition) -> dict[Partition, int | None]:
        return {
            partition: self.loop.run(self.inner.committed(TopicPartition(*partition)))
            for partition in partitions
        }

    def seek(self, partition: Partition, offset: int) -> None:
        topic_partition = TopicPartition(*partition)
        if offset == START:
            self.loop.run(self.inner.seek_to_beginning(topic_partition))
        elif offset == END:
            self.loop.run(self.inner.seek_to_end(topic_partition))
        else:
            self._call("seek", topic_partition, offset)

    def pause(self, *partitions: Partition) -> None:
        self._call("pause", *(TopicPartition(*partition) for partition in partitions))

    def resume(self, *partitions: Partition) -> None:
        self._call("resume", *(TopicPartition(*partition) for partition in partitions))

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        requested = {TopicPartition(*partition): at for partition, at in times.items()}
        offsets = self.loop.run(self.inner.offsets_for_times(requested))
        return {
            (partition.topic, partition.partition): at.offset if at else None
            for partition, at in offsets.items()
        }

    def bounds(self, partition: Partition) -> tuple[int, int]:
        topic_partition = TopicPartition(*partition)
        low = self.loop.run(self.inner.beginning_offsets([topic_partition]))[topic_partition]
        high = self.loop.run(self.inner.end_offsets([topic_partition]))[topic_partition]
        return low, high

    def close(self) -> None:
        self.loop.run(self.inner.stop())


class AiokafkaAdmin(Admin):
    """aiokafka returns raw responses for most calls, so this class checks their error codes."""

    def __init__(self, loop: Loop, bootstrap: str) -> None:
        self.loop = loop

        async def open_admin() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            return admin

        self.inner = loop.run(open_admin())

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate: bool = False,
    ) -> None:
        wanted = NewTopic(topic, partitions, replication, topic_configs=dict(configs or {}))
        answer = self.loop.run(self.inner.create_topics([wanted], validate_only=validate))
        for _, code, message, *_ in answer.topic_errors:
            if code:
                raise Refused(code, message)

    def delete_topic(self, topic: str) -> None:
        answer = self.loop.run(self.inner.delete_topics([topic]))
        for _, code, *_ in answer.topic_error_codes:
            if code:
                raise Refused(code)

    def create_partitions(self, topic: str, total: int) -> None:
        self.loop.run(self.inner.create_partitions({topic: NewPartitions(total)}))

    def topics(self) -> set[str]:
        return set(self.loop.run(self.inner.list_topics()))

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        (description,) = self.loop.run(self.inner.describe_topics([topic]))
        if description["error_code"]:
            raise Refused(description["error_code"])
        return sorted(
            (
                {
                    "partition": partition["partition"],
                    "leader": partition["leader"],
                    "replicas": partition["replicas"],
                    "isr": partition["isr"],
                }
                for partition in description["partitions"]
            ),
            key=lambda partition: partition["partition"],
        )

    def configs(self, topic: str) -> dict[str, tuple[str, bool]]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self.loop.run(self.inner.describe_configs([resource]))
        code, message, _, _, entries = answer.resources[0]
        if code:
            raise Refused(code, message)
        # Entries are (name, value, read only, source, …); source 5 is the built-in default.
        return {name: (value, source == 5) for name, value, _, source, *_ in entries}

    def cluster(self) -> dict[str, Any]:
        cluster = self.loop.run(self.inner.describe_cluster())
        nodes = [(node["node_id"], node["host"], node["port"]) for node in cluster["brokers"]]
        return {"controller": cluster["controller_id"], "nodes": nodes}

    def groups(self) -> set[str]:
        return {group for group, *_ in self.loop.run(self.inner.list_consumer_groups())}

    def describe_group(self, group: str) -> dict[str, Any]:
        (answer,) = self.loop.run(self.inner.describe_consumer_groups([group]))
        code, _, state, _, assignor, members, *_ = answer.groups[0]
        if code:
            raise Refused(code)
        described = []
        for _, client_id, _, _, assignment, *_ in members:
            assigned_topics = (
                ConsumerProtocolMemberAssignment.decode(assignment).assignment if assignment else []
            )
            partitions = sorted((topic, index) for topic, indexes in assigned_topics for index in indexes)
            described.append((client_id, partitions))
        return {"state": state, "assignor": assignor, "members": sorted(described)}

    def group_offsets(self, group: str) -> Offsets:
        offsets = self.loop.run(self.inner.list_consumer_group_offsets(group))
        return {(partition.topic, partition.partition): at.offset for partition, at in offsets.items()}

    def delete_records(self, offsets: Mapping[Partition, int]) -> Offsets:
        wanted = {TopicPartition(*partition): RecordsToDelete(at) for partition, at in offsets.items()}
        done = self.loop.run(self.inner.delete_records(wanted))
        return {(partition.topic, partition.partition): low for partition, low in done.items()}

    def close(self) -> None:
        self.loop.run(self.inner.close())


class AiokafkaClient(Client):
    name = "aiokafka"
    can = frozenset({"null_headers"})

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()

    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], options: ProducerOptions
    ) -> list[tuple[int, int]]:
        async def send_all() -> list[tuple[int, int]]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks=options.acks,
                compression_type=None if options.codec == "none" else options.codec,
                enable_idempotence=options.idempotent,
                max_request_size=options.request_bytes_max,
                max_batch_size=max(16384, options.request_bytes_max),
                linger_ms=5,
            )
            await producer.start()
            try:
                waiting = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                done = await asyncio.gather(*waiting)
            finally:
                await producer.stop()
            # Without acknowledgements the client knows no offsets and returns nothing.
            return [(-1, -1) if report is None else (report.partition, report.offset) for report in done]

        return self.loop.run(send_all())

    def open_consumer(self, bootstrap: str, group: str | None, options: ConsumerOptions) -> Consumer:
        assert options.assignor == "range", "aiokafka has no cooperative assignor"
        return AiokafkaConsumer(
            self.loop,
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
                "partition_assignment_strategy": (RangePartitionAssignor,),
                "isolation_level": "read_committed" if options.committed else "read_uncommitted",
            },
        )

    def open_admin(self, bootstrap: str) -> Admin:
        return AiokafkaAdmin(self.loop, bootstrap)

    def close(self) -> None:
        super().close()
        self.loop.close()
