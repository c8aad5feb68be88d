"""Lists all topics of the log. The number of queries does not depend on the number of topics.

One query lists names and partitions. Three more read the starts, ends and sizes of all partitions. Retention is queried
twice a minute. Requests within one second share a result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from headrace.client.cluster import Cluster, listed_offset
from headrace.client.errors import from_kafka
from headrace.client.offset_spec import Bounds, Partition
from headrace.clock import Clock
from headrace.ops.lag.lag import Retention, retention_of
from headrace.ops.lag.rates import Rates
from headrace.ops.outlook import sizes_of

__all__ = ["LogTopic", "LogTopics", "bounds_of", "first_since"]

_FRESH_S = 1.0
_CONFIGS_S = 30.0
_TOPICS_PER_QUERY_MAX = 1_000


@dataclass(frozen=True, slots=True)
class LogTopic:
    name: str
    bounds: dict[int, Bounds]
    """Start and end by partition. A partition without a leader is missing."""
    partitions: int
    replicas: int
    size_bytes: int | None
    sizes: dict[int, int]
    per_s: float | None
    """None after the first query, because a rate needs two queries."""
    cleanup: str | None
    retention: Retention | None
    """None if the query failed."""

    @property
    def records(self) -> int:
        return sum(bounds.end - bounds.start for bounds in self.bounds.values())

    def summary(self) -> dict[str, Any]:
        retention = self.retention
        return {
            "topic": self.name,
            "internal": self.name.startswith("__"),
            "partitions": self.partitions,
            "offline": self.partitions - len(self.bounds),
            "replicas": self.replicas,
            "records": self.records,
            "bytes": self.size_bytes,
            "per_s": None if self.per_s is None else round(self.per_s, 3),
            "cleanup": self.cleanup,
            "retention_s": retention.retention_s if retention else None,
            "retention_bytes": retention.retention_bytes if retention else None,
        }


class LogTopics:
    """Thread-safe. One thread queries while the others wait for its result."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._rates = Rates()
        self._topics: list[LogTopic] = []
        self._queried_s: float | None = None
        self._configs: dict[str, tuple[str | None, Retention]] = {}
        self._configs_s: float | None = None

    def all(self) -> list[LogTopic]:
        """Return all topics, sorted by name."""
        with self._lock:
            now = self._clock.steady()
            if self._queried_s is None or now - self._queried_s >= _FRESH_S:
                self._topics = self._query()
                self._queried_s = self._clock.steady()
            return self._topics

    def topic(self, name: str) -> LogTopic:
        """Query the current state of one topic."""
        info = self._cluster.expect_topic(name)
        with self._lock:
            return self._describe({name: (range(info.partitions), info.replicas)})[0]

    def _query(self) -> list[LogTopic]:
        cluster = self._cluster
        try:
            metadata = cluster.admin().list_topics(timeout=cluster.timeout_s).topics
        except KafkaException as error:
            raise from_kafka(error, "listing topics") from error
        topics = self._describe(
            {
                name: (
                    sorted(topic.partitions),
                    max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
                )
                for name, topic in sorted(metadata.items())
            }
        )
        self._rates.retain(metadata.keys())
        return topics

    def _describe(self, topics: Mapping[str, tuple[Sequence[int], int]]) -> list[LogTopic]:
        """``topics`` maps each name to its partitions and replication factor."""
        cluster = self._cluster
        all_partitions = [(name, number) for name, (numbers, _) in topics.items() for number in numbers]
        bounds = bounds_of(cluster, all_partitions)
        sizes = sizes_of(cluster, all_partitions)
        self._query_configs(list(topics))
        at_s = self._clock.steady()
        log_topics = []
        for name, (numbers, replicas) in topics.items():
            topic_bounds = {number: bounds[name, number] for number in numbers if (name, number) in bounds}
            rate = self._rates.add_sample(name, at_s, sum(limits.end for limits in topic_bounds.values()))
            topic_sizes = {
                number: sizes.bytes[name, number]
                for number in numbers
                if sizes and (name, number) in sizes.bytes
            }
            cleanup, retention = self._configs.get(name, (None, None))
            log_topics.append(
                LogTopic(
                    name,
                    topic_bounds,
                    len(numbers),
                    replicas,
                    sum(topic_sizes.values()) if topic_sizes else None,
                    topic_sizes,
                    None if rate is None else rate.per_s,
                    cleanup,
                    retention,
                )
            )
        return log_topics

    def _query_configs(self, names: list[str]) -> None:
        now = self._clock.steady()
        is_fresh = self._configs_s is not None and now - self._configs_s < _CONFIGS_S
        names_to_query = [name for name in names if name not in self._configs] if is_fresh else names
        cluster = self._cluster
        configs_by_topic: dict[str, tuple[str | None, Retention]] = dict(self._configs) if is_fresh else {}
        for begin in range(0, len(names_to_query), _TOPICS_PER_QUERY_MAX):
            resources = [
                ConfigResource(ResourceType.TOPIC, name)
                for name in names_to_query[begin : begin + _TOPICS_PER_QUERY_MAX]
            ]
            futures = cluster.admin().describe_configs(resources, request_timeout=cluster.timeout_s)
            for resource, future in futures.items():
                try:
                    entries = cluster.wait_for(future)
                except KafkaException:
                    continue  # The topic was deleted meanwhile, or the server is not authorized.
                configs = {name: entry.value for name, entry in entries.items()}
                configs_by_topic[resource.name] = configs.get("cleanup.policy"), retention_of(configs)
        self._configs = configs_by_topic
        if not is_fresh:
            self._configs_s = now


def bounds_of(cluster: Cluster, partitions: Iterable[Partition]) -> dict[Partition, Bounds]:
    """Return start and end by partition, without deleted partitions and partitions without a leader."""
    all_partitions = list(partitions)
    starts = _offsets(cluster, all_partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    ends = _offsets(cluster, all_partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {
        partition: Bounds(starts[partition], ends[partition])
        for partition in all_partitions
        if partition in starts and partition in ends
    }


def first_since(cluster: Cluster, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, int]:
    """Return, by partition, the first offset whose timestamp is ``time_ms`` or later, or -1 if none exists."""
    # Negative timestamps are special values in the Kafka protocol.
    return _offsets(cluster, partitions, OffsetSpec.for_timestamp(max(0, time_ms)))


def _offsets(cluster: Cluster, partitions: Iterable[Partition], spec: Any) -> dict[Partition, int]:
    """Return offsets by partition, without deleted partitions and partitions without a leader."""
    specs = {TopicPartition(topic, number): spec for topic, number in partitions}
    if not specs:
        return {}
    futures = cluster.admin().list_offsets(
        specs, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=cluster.timeout_s
    )
    offsets: dict[Partition, int] = {}
    failure: KafkaException | None = None
    for partition, future in futures.items():
        try:
            offsets[partition.topic, partition.partition] = listed_offset(cluster.wait_for(future))
        except KafkaException as error:
            failure = error
    if failure is not None and not offsets:
        raise from_kafka(failure, "listing offsets") from failure
    return offsets
