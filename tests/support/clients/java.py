"""The Java client 4.3, through the driver's JVM."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.support.clients.face import Admin, Client, Consumer, Offsets, Partition, Record, Seen
from tests.support.java_driver import JavaDriver
from tests.support.refused import Refused

__all__ = ["JavaClient"]

ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
_names = itertools.count()


def packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def triples(offsets: Mapping[Partition, int]) -> list[list[Any]]:
    return [[topic, partition, offset] for (topic, partition), offset in offsets.items()]


def by_partition(found: Iterable[Sequence[Any]]) -> dict[Partition, Any]:
    return {(topic, partition): offset for topic, partition, offset in found}


class JavaConsumer(Consumer):
    def __init__(self, driver: JavaDriver, config: dict[str, Any]) -> None:
        self.driver = driver
        self.name = f"consumer-{next(_names)}"
        self.problems = []
        self.call("open", config=config)

    def call(self, op: str, **arguments: Any) -> Any:
        return self.driver.call(f"consumer.{op}", on=self.name, **arguments)

    def subscribe(self, *topics: str) -> None:
        self.call("subscribe", topics=topics)

    def subscribe_pattern(self, pattern: str) -> None:
        self.call("pattern", pattern=pattern)

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        self.call("assign", offsets=triples(offsets))

    def poll(self, timeout_s: float = 0.05) -> list[Seen]:
        return [
            Seen(
                one["topic"],
                one["partition"],
                one["offset"],
                unpacked(one["key"]),
                unpacked(one["value"]),
                tuple((key, unpacked(value)) for key, value in one["headers"]),
                one["timestamp"],
                one["timestamp_type"] == 1,
            )
            for one in self.call("poll", timeout_ms=int(timeout_s * 1000))
        ]

    def assignment(self) -> set[Partition]:
        return {(topic, partition) for topic, partition in self.call("assignment")}

    def events(self) -> list[tuple[str, list[Partition]]]:
        return [(what, [(topic, index) for topic, index in some]) for what, some in self.call("events")]

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        self.call("commit", **({} if offsets is None else {"offsets": triples(offsets)}))

    def committed(self, *partitions: Partition) -> dict[Partition, int | None]:
        return by_partition(self.call("committed", partitions=partitions))

    def seek(self, partition: Partition, offset: int) -> None:
        self.call("seek", offsets=triples({partition: offset}))

    def pause(self, *partitions: Partition) -> None:
        self.call("pause", partitions=partitions)

    def resume(self, *partitions: Partition) -> None:
        self.call("resume", partitions=partitions)

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        return by_partition(self.call("times", times=triples(times)))

    def bounds(self, partition: Partition) -> tuple[int, int]:
        return (
            self.call("beginning", partitions=[partition])[0][2],
            self.call("end", partitions=[partition])[0][2],
        )

    def close(self) -> None:
        self.call("close")


class JavaAdmin(Admin):
    def __init__(self, driver: JavaDriver, bootstrap: str) -> None:
        self.driver = driver
        self.bootstrap = bootstrap

    def call(self, op: str, **arguments: Any) -> Any:
        return self.driver.call(f"admin.{op}", bootstrap=self.bootstrap, **arguments)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate: bool = False,
    ) -> None:
        self.call(
            "create_topic",
            topic=topic,
            partitions=partitions,
            replication=replication,
            configs=dict(configs or {}),
            validate=validate,
        )

    def delete_topic(self, topic: str) -> None:
        self.call("delete_topic", topic=topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self.call("create_partitions", topic=topic, total=total)

    def topics(self) -> set[str]:
        return set(self.call("topics"))

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        partitions: list[dict[str, Any]] = self.call("describe_topic", topic=topic)["partitions"]
        return partitions

    def configs(self, topic: str) -> dict[str, tuple[str, bool]]:
        found = self.call("configs", type="TOPIC", name=topic)
        return {name: (entry["value"], entry["default"]) for name, entry in found.items()}

    def alter_configs(self, topic: str, changes: Iterable[tuple[str, str, str | None]]) -> None:
        self.call("alter_configs", type="TOPIC", name=topic, changes=list(changes))

    def cluster(self) -> dict[str, Any]:
        found = self.call("cluster")
        return {"controller": found["controller"], "nodes": [tuple(node) for node in found["nodes"]]}

    def groups(self) -> set[str]:
        return {group for group, _, _ in self.call("groups")}

    def describe_group(self, group: str) -> dict[str, Any]:
        found = self.call("describe_group", group=group)
        return {
            "state": found["state"],
            "assignor": found["assignor"],
            "members": sorted(
                (member["client"], [(topic, index) for topic, index in member["partitions"]])
                for member in found["members"]
            ),
        }

    def group_offsets(self, group: str) -> Offsets:
        return by_partition(self.call("group_offsets", group=group))

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        self.call("alter_group_offsets", group=group, offsets=triples(offsets))

    def delete_group_offsets(self, group: str, *partitions: Partition) -> None:
        self.call("delete_group_offsets", group=group, partitions=partitions)

    def delete_group(self, group: str) -> None:
        self.call("delete_group", group=group)

    def delete_records(self, offsets: Mapping[Partition, int]) -> Offsets:
        return by_partition(self.call("delete_records", offsets=triples(offsets)))

    def list_offset(self, partition: Partition, spec: str | int) -> int:
        topic, index = partition
        offset: int = self.call("list_offsets", topic=topic, partition=index, spec=str(spec))[0]
        return offset

    def log_dirs(self, topic: str) -> dict[int, int]:
        return {partition: size for partition, size, _ in self.call("log_dirs", topic=topic)}

    def close(self) -> None:
        """The driver's JVM holds the connection and ends with it."""


class JavaClient(Client):
    name = "java"
    can = frozenset(
        {
            "cooperative",
            "incremental",
            "group_admin",
            "delete_group_offsets",
            "log_dirs",
            "list_offset",
            "null_headers",
        }
    )

    def __init__(self, driver: JavaDriver) -> None:
        super().__init__()
        self.driver = driver

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
        name = f"producer-{next(_names)}"
        config = {
            "bootstrap.servers": bootstrap,
            "acks": str(acks),
            "compression.type": codec,
            "enable.idempotence": str(idempotent).lower(),
            "max.request.size": str(request_bytes_max),
            "buffer.memory": str(max(8_000_000, request_bytes_max)),
            "linger.ms": "5",
            "max.block.ms": "15000",
            "delivery.timeout.ms": "30000",
            "request.timeout.ms": "15000",
        }
        self.driver.call("producer.open", on=name, config=config)
        try:
            results = self.driver.call(
                "producer.send",
                on=name,
                records=[
                    {
                        "topic": topic,
                        "partition": record.partition,
                        "timestamp": record.timestamp_ms,
                        "key": packed(record.key),
                        "value": packed(record.value),
                        "headers": [[key, packed(value)] for key, value in record.headers],
                    }
                    for record in records
                ],
            )
        finally:
            self.driver.call("producer.close", on=name)
        for result in results:
            if "error" in result:
                raise Refused(result["error"], result["message"])
        return [(result["partition"], result["offset"]) for result in results]

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
        config = {
            "bootstrap.servers": bootstrap,
            "client.id": "wire",
            "auto.offset.reset": {"error": "none"}.get(reset, reset),
            "enable.auto.commit": "false",
            "fetch.max.wait.ms": str(max_wait_ms),
            "session.timeout.ms": str(session_ms),
            "heartbeat.interval.ms": str(heartbeat_ms),
            "metadata.max.age.ms": "500",
            "retry.backoff.ms": "50",
            "default.api.timeout.ms": "15000",
            "partition.assignment.strategy": ASSIGNORS[assignor],
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
        if group is not None:
            config["group.id"] = group
        if instance is not None:
            config["group.instance.id"] = instance
        return JavaConsumer(self.driver, config)

    def open_admin(self, bootstrap: str) -> Admin:
        return JavaAdmin(self.driver, bootstrap)
