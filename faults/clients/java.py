"""The adapter of the Java client 4.3, which runs in the driver's JVM."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from faults.clients.java_driver import JavaDriver
from faults.clients.port import (
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

__all__ = ["JavaClient"]

ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
_names = itertools.count()


def encode_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decode_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def triples(offsets: Mapping[Partition, int]) -> list[list[Any]]:
    return [[topic, partition, offset] for (topic, partition), offset in offsets.items()]


def by_partition(rows: Iterable[Sequence[Any]]) -> dict[Partition, Any]:
    return {(topic, partition): offset for topic, partition, offset in rows}


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

    def poll(self, timeout_s: float = 0.05) -> list[ConsumedRecord]:
        return [
            ConsumedRecord(
                record["topic"],
                record["partition"],
                record["offset"],
                decode_base64(record["key"]),
                decode_base64(record["value"]),
                tuple((key, decode_base64(value)) for key, value in record["headers"]),
                record["timestamp"],
                record["timestamp_type"] == 1,
            )
            for record in self.call("poll", timeout_ms=int(timeout_s * 1000))
        ]

    def assignment(self) -> set[Partition]:
        return {(topic, partition) for topic, partition in self.call("assignment")}

    def events(self) -> list[tuple[str, list[Partition]]]:
        return [(kind, [(topic, index) for topic, index in changed]) for kind, changed in self.call("events")]

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
        configs = self.call("configs", type="TOPIC", name=topic)
        return {name: (entry["value"], entry["default"]) for name, entry in configs.items()}

    def alter_configs(self, topic: str, changes: Iterable[tuple[str, str, str | None]]) -> None:
        self.call("alter_configs", type="TOPIC", name=topic, changes=list(changes))

    def cluster(self) -> dict[str, Any]:
        cluster = self.call("cluster")
        return {"controller": cluster["controller"], "nodes": [tuple(node) for node in cluster["nodes"]]}

    def groups(self) -> set[str]:
        return {group for group, _, _ in self.call("groups")}

    def describe_group(self, group: str) -> dict[str, Any]:
        described = self.call("describe_group", group=group)
        return {
            "state": described["state"],
            "assignor": described["assignor"],
            "members": sorted(
                (member["client"], [(topic, index) for topic, index in member["partitions"]])
                for member in described["members"]
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
        """The connection belongs to the driver's JVM, which closes it when it exits."""


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

    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], options: ProducerOptions
    ) -> list[tuple[int, int]]:
        name = f"producer-{next(_names)}"
        config = {
            "bootstrap.servers": bootstrap,
            "acks": str(options.acks),
            "compression.type": options.codec,
            "enable.idempotence": str(options.idempotent).lower(),
            "max.request.size": str(options.request_bytes_max),
            "buffer.memory": str(max(8_000_000, options.request_bytes_max)),
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
                        "key": encode_base64(record.key),
                        "value": encode_base64(record.value),
                        "headers": [[key, encode_base64(value)] for key, value in record.headers],
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

    def open_consumer(self, bootstrap: str, group: str | None, options: ConsumerOptions) -> Consumer:
        config = {
            "bootstrap.servers": bootstrap,
            "client.id": "wire",
            "auto.offset.reset": {"error": "none"}.get(options.reset, options.reset),
            "enable.auto.commit": "false",
            "fetch.max.wait.ms": str(options.max_wait_ms),
            "session.timeout.ms": str(options.session_ms),
            "heartbeat.interval.ms": str(options.heartbeat_ms),
            "metadata.max.age.ms": "500",
            "retry.backoff.ms": "50",
            "default.api.timeout.ms": "15000",
            "partition.assignment.strategy": ASSIGNORS[options.assignor],
            "isolation.level": "read_committed" if options.committed else "read_uncommitted",
        }
        if group is not None:
            config["group.id"] = group
        if options.instance is not None:
            config["group.instance.id"] = options.instance
        return JavaConsumer(self.driver, config)

    def open_admin(self, bootstrap: str) -> Admin:
        return JavaAdmin(self.driver, bootstrap)
