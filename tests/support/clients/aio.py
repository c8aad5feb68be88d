"""aiokafka 0.14: asyncio's client. It runs on a loop in a thread of its own, so that scenarios stay plain code."""

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

__all__ = ["AiokafkaClient"]

T = TypeVar("T")


class Loop:
    """An event loop that others hand coroutines to; errors come back as ``Refused``."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="aiokafka", daemon=True)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = 240.0) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)
        except kafka_errors.KafkaError as failed:
            raise Refused(number(failed), str(failed)) from failed

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def number(failed: BaseException) -> int:
    if isinstance(failed, kafka_errors.CommitFailedError):
        return 25
    if isinstance(failed, kafka_errors.ProducerFenced):
        # Its own words for either of two numbers.
        return 90
    code = getattr(failed, "errno", None)
    assert isinstance(code, int), f"{failed!r} has no number"
    return code


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, told: list[tuple[str, list[Partition]]]) -> None:
        self.told = told

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.told.append(("assigned", sorted((one.topic, one.partition) for one in assigned)))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.told.append(("revoked", sorted((one.topic, one.partition) for one in revoked)))


class AiokafkaConsumer(Consumer):
    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        self.problems = []
        self.loop = loop
        self.told: list[tuple[str, list[Partition]]] = []

        async def opened() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(**config)
            await consumer.start()
            return consumer

        self.inner = loop.run(opened())

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def called() -> Any:
            return getattr(self.inner, method)(*arguments, **options)

        return self.loop.run(called())

    def subscribe(self, *topics: str) -> None:
        self._call("subscribe", topics=list(topics), listener=Listener(self.told))

    def subscribe_pattern(self, pattern: str) -> None:
        self._call("subscribe", pattern=pattern, listener=Listener(self.told))

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        self._call("assign", [TopicPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self.seek(partition, offset)

    def poll(self, timeout_s: float = 0.05) -> list[Seen]:
        found = self.loop.run(self.inner.getmany(timeout_ms=int(timeout_s * 1000)))
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
            wanted = {TopicPartition(*partition): at for partition, at in offsets.items()}
        self.loop.run(self.inner.commit(wanted))

    def committed(self, *partitions: Partition) -> dict[Partition, int | None]:
        return {
            partition: self.loop.run(self.inner.committed(TopicPartition(*partition)))
            for partition in partitions
        }

    def seek(self, partition: Partition, offset: int) -> None:
        place = TopicPartition(*partition)
        if offset == START:
            self.loop.run(self.inner.seek_to_beginning(place))
        elif offset == END:
            self.loop.run(self.inner.seek_to_end(place))
        else:
            self._call("seek", place, offset)

    def pause(self, *partitions: Partition) -> None:
        self._call("pause", *(TopicPartition(*partition) for partition in partitions))

    def resume(self, *partitions: Partition) -> None:
        self._call("resume", *(TopicPartition(*partition) for partition in partitions))

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        asked = {TopicPartition(*partition): at for partition, at in times.items()}
        found = self.loop.run(self.inner.offsets_for_times(asked))
        return {(one.topic, one.partition): at.offset if at else None for one, at in found.items()}

    def bounds(self, partition: Partition) -> tuple[int, int]:
        place = TopicPartition(*partition)
        low = self.loop.run(self.inner.beginning_offsets([place]))[place]
        high = self.loop.run(self.inner.end_offsets([place]))[place]
        return low, high

    def close(self) -> None:
        self.loop.run(self.inner.stop())


class AiokafkaAdmin(Admin):
    """aiokafka hands over raw answers for most calls; their error numbers are looked at here."""

    def __init__(self, loop: Loop, bootstrap: str) -> None:
        self.loop = loop

        async def opened() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            return admin

        self.inner = loop.run(opened())

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
        (found,) = self.loop.run(self.inner.describe_topics([topic]))
        if found["error_code"]:
            raise Refused(found["error_code"])
        return sorted(
            (
                {
                    "partition": one["partition"],
                    "leader": one["leader"],
                    "replicas": one["replicas"],
                    "isr": one["isr"],
                }
                for one in found["partitions"]
            ),
            key=lambda one: one["partition"],
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
        found = self.loop.run(self.inner.describe_cluster())
        nodes = [(node["node_id"], node["host"], node["port"]) for node in found["brokers"]]
        return {"controller": found["controller_id"], "nodes": nodes}

    def groups(self) -> set[str]:
        return {group for group, *_ in self.loop.run(self.inner.list_consumer_groups())}

    def describe_group(self, group: str) -> dict[str, Any]:
        (answer,) = self.loop.run(self.inner.describe_consumer_groups([group]))
        code, _, state, _, assignor, members, *_ = answer.groups[0]
        if code:
            raise Refused(code)
        described = []
        for _, client_id, _, _, assignment, *_ in members:
            given = ConsumerProtocolMemberAssignment.decode(assignment).assignment if assignment else []
            partitions = sorted((topic, index) for topic, indexes in given for index in indexes)
            described.append((client_id, partitions))
        return {"state": state, "assignor": assignor, "members": sorted(described)}

    def group_offsets(self, group: str) -> Offsets:
        found = self.loop.run(self.inner.list_consumer_group_offsets(group))
        return {(one.topic, one.partition): at.offset for one, at in found.items()}

    def delete_records(self, offsets: Mapping[Partition, int]) -> Offsets:
        wanted = {TopicPartition(*partition): RecordsToDelete(at) for partition, at in offsets.items()}
        done = self.loop.run(self.inner.delete_records(wanted))
        return {(one.topic, one.partition): low for one, low in done.items()}

    def close(self) -> None:
        self.loop.run(self.inner.close())


class AiokafkaClient(Client):
    name = "aiokafka"
    can = frozenset({"null_headers"})

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()

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
        async def sent() -> list[tuple[int, int]]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks=acks,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                max_request_size=request_bytes_max,
                max_batch_size=max(16384, request_bytes_max),
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
            # Without acknowledgements the client knows no offsets and gives back nothing.
            return [(-1, -1) if one is None else (one.partition, one.offset) for one in done]

        return self.loop.run(sent())

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
        assert assignor == "range", "aiokafka has no cooperative assignor"
        return AiokafkaConsumer(
            self.loop,
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
                "partition_assignment_strategy": (RangePartitionAssignor,),
                "isolation_level": "read_committed" if committed else "read_uncommitted",
            },
        )

    def open_admin(self, bootstrap: str) -> Admin:
        return AiokafkaAdmin(self.loop, bootstrap)

    def close(self) -> None:
        super().close()
        self.loop.close()
