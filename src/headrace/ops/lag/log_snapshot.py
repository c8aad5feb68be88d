"""Snapshots of topics in the log: starts, ends, retention and sizes, in a fixed number of queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from headrace.client.cluster import Cluster, listed_offset
from headrace.client.errors import LogError, from_kafka
from headrace.clock import Clock
from headrace.ops.lag.lag import Retention, retention_of
from headrace.ops.lag.reader import Partition
from headrace.ops.outlook import sizes_of

__all__ = ["LogSnapshot", "SnapshotCache", "offsets_at", "take_snapshot"]

_MISSING_TOPIC_AGE_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The state of topics at one time. A topic that does not exist is absent from all fields."""

    partitions: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids: a topic that was deleted and created again has another id."""
    starts: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    committed_ends: Mapping[Partition, int] = field(default_factory=dict)
    """The ends for read_committed: before the records of open transactions."""
    retentions: Mapping[str, Retention] = field(default_factory=dict)
    sizes: Mapping[Partition, int] = field(default_factory=dict)
    """Sizes in bytes; absent if the broker does not report them."""

    def average_record_bytes(self, partition: Partition) -> float | None:
        """Return the average record size of the partition, as an estimate for any record."""
        size, count = self.sizes.get(partition), self.ends[partition] - self.starts[partition]
        return None if size is None or count <= 0 else size / count


def take_snapshot(cluster: Cluster, topics: Collection[str]) -> LogSnapshot:
    described = _describe(cluster, topics)
    counts = {name: count for name, (_, count) in described.items()}
    partitions = [(name, number) for name, count in counts.items() for number in range(count)]
    if not partitions:
        return LogSnapshot()
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    sizes = sizes_of(cluster, partitions)
    return LogSnapshot(
        counts,
        {name: topic_id for name, (topic_id, _) in described.items()},
        _offsets(cluster, partitions, OffsetSpec.earliest(), committed=False),  # type: ignore[no-untyped-call]
        _offsets(cluster, partitions, latest, committed=False),
        _offsets(cluster, partitions, latest, committed=True),
        _retentions(cluster, counts),
        sizes.bytes if sizes else {},
    )


class SnapshotCache:
    """Takes snapshots repeatedly. It queries ends each time, and all other fields only if they are older than
    ``age_s_max``.
    """

    def __init__(self, cluster: Cluster, clock: Clock, age_s_max: float = 10.0) -> None:
        self._cluster = cluster
        self._clock = clock
        self._age_s_max = age_s_max
        self._topics: Collection[str] = ()
        self._last: LogSnapshot | None = None
        self._taken_s = 0.0

    def snapshot(self, topics: Collection[str], *, full: bool = False) -> LogSnapshot:
        """Take a snapshot. ``full`` queries all fields now."""
        last, now_s = self._last, self._clock.steady()
        # While a topic is missing, query more often.
        age_s_max = (
            self._age_s_max if last and len(last.partitions) == len(topics) else _MISSING_TOPIC_AGE_S_MAX
        )
        if full or last is None or topics != self._topics or now_s - self._taken_s >= age_s_max:
            self._last = None
            last = take_snapshot(self._cluster, topics)
            self._last, self._topics, self._taken_s = last, set(topics), now_s
            return last
        try:
            return replace(
                last,
                ends=_offsets(self._cluster, last.starts, OffsetSpec.latest(), committed=False),  # type: ignore[no-untyped-call]
                committed_ends=_offsets(self._cluster, last.starts, OffsetSpec.latest(), committed=True),  # type: ignore[no-untyped-call]
            )
        except LogError:
            # A topic can have been deleted or recreated.
            self._last = None
            raise


def offsets_at(
    cluster: Cluster, partitions: Collection[Partition], at_ms: int
) -> dict[Partition, int | None]:
    """Return the first offset of each partition with a timestamp of ``at_ms`` or later; None if no record has one."""
    if not partitions:
        return {}
    offsets = _offsets(cluster, partitions, OffsetSpec.for_timestamp(at_ms), committed=False)
    return {partition: offset if offset >= 0 else None for partition, offset in offsets.items()}


def _describe(cluster: Cluster, topics: Collection[str]) -> dict[str, tuple[str, int]]:
    """Return the id and the number of partitions of each topic that exists."""
    if not topics:
        return {}
    names = TopicCollection(sorted(topics))
    futures = cluster.admin().describe_topics(names, request_timeout=cluster.timeout_s)
    described: dict[str, tuple[str, int]] = {}
    for name, future in futures.items():
        try:
            topic = cluster.wait_for(future)
            described[name] = str(topic.topic_id), len(topic.partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise from_kafka(error, f"describing topic {name!r}") from error
    return described


def _offsets(
    cluster: Cluster, partitions: Iterable[Partition], spec: Any, *, committed: bool
) -> dict[Partition, int]:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    specs = {TopicPartition(topic, number): spec for topic, number in partitions}
    futures = cluster.admin().list_offsets(specs, isolation_level=level, request_timeout=cluster.timeout_s)
    try:
        return {
            (partition.topic, partition.partition): listed_offset(cluster.wait_for(future))
            for partition, future in futures.items()
        }
    except KafkaException as error:
        raise from_kafka(error, "listing offsets") from error


def _retentions(cluster: Cluster, topics: Iterable[str]) -> dict[str, Retention]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = cluster.admin().describe_configs(resources, request_timeout=cluster.timeout_s)
    try:
        return {
            resource.name: retention_of(
                {name: entry.value for name, entry in cluster.wait_for(future).items()}
            )
            for resource, future in futures.items()
        }
    except KafkaException as error:
        raise from_kafka(error, "describing the configs of topics") from error
