"""All topics of the log, in a fixed number of questions however many there are.

One for names and partitions, one each for the begins and ends of all partitions, one for their sizes; what topics keep
is asked anew twice a minute only. What was found is given to all who ask within a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.client.offset_answer import offset_told
from headrace.client.places import Bounds, Partition
from headrace.clock import Clock
from headrace.ops.lag.rates import Rates
from headrace.ops.lag.retention import Retention, retention_of
from headrace.ops.log_dirs import sizes_of

__all__ = ["LogTopic", "LogTopics", "bounds_of", "first_since"]

_FRESH_S = 1.0
_CONFIGS_S = 30.0
_ASKED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class LogTopic:
    name: str
    bounds: dict[int, Bounds]
    """Of partitions whose offsets are known; one that nobody leads is not in it."""
    partitions: int
    replicas: int
    size_bytes: int | None
    sizes: dict[int, int]
    per_s: float | None
    """None at the first look."""
    cleanup: str | None
    retention: Retention | None
    """None where it could not be asked for."""

    @property
    def records(self) -> int:
        return sum(one.end - one.start for one in self.bounds.values())

    def told(self) -> dict[str, Any]:
        kept = self.retention
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
            "retention_s": kept.kept_s if kept else None,
            "retention_bytes": kept.kept_bytes if kept else None,
        }


class LogTopics:
    """For any thread; one asks, and the others wait for it."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._rates = Rates()
        self._found: list[LogTopic] = []
        self._found_at: float | None = None
        self._kept: dict[str, tuple[str | None, Retention]] = {}
        self._kept_at: float | None = None

    def all(self) -> list[LogTopic]:
        """By name."""
        with self._lock:
            now = self._clock.steady()
            if self._found_at is None or now - self._found_at >= _FRESH_S:
                self._found = self._look()
                self._found_at = self._clock.steady()
            return self._found

    def one(self, name: str) -> LogTopic:
        """As it is now, without asking for any other."""
        info = self._cluster.expect_topic(name)
        with self._lock:
            return self._described({name: (range(info.partitions), info.replicas)})[0]

    def _look(self) -> list[LogTopic]:
        cluster = self._cluster
        try:
            listed = cluster.admin().list_topics(timeout=cluster.timeout_s).topics
        except KafkaException as error:
            raise from_kafka(error, "asking for topics") from error
        found = self._described(
            {
                name: (
                    sorted(topic.partitions),
                    max((len(one.replicas) for one in topic.partitions.values()), default=0),
                )
                for name, topic in sorted(listed.items())
            }
        )
        self._rates.keep(listed.keys())
        return found

    def _described(self, topics: Mapping[str, tuple[Sequence[int], int]]) -> list[LogTopic]:
        """By name: which partitions they have, and how many copies of each."""
        cluster = self._cluster
        every = [(name, number) for name, (numbers, _) in topics.items() for number in numbers]
        bounds = bounds_of(cluster, every)
        sizes = sizes_of(cluster, every)
        self._learn_configs(list(topics))
        at_s = self._clock.steady()
        found = []
        for name, (numbers, replicas) in topics.items():
            known = {one: bounds[name, one] for one in numbers if (name, one) in bounds}
            rate = self._rates.note(name, at_s, sum(one.end for one in known.values()))
            own = {one: sizes.bytes[name, one] for one in numbers if sizes and (name, one) in sizes.bytes}
            cleanup, retention = self._kept.get(name, (None, None))
            found.append(
                LogTopic(
                    name,
                    known,
                    len(numbers),
                    replicas,
                    sum(own.values()) if own else None,
                    own,
                    None if rate is None else rate.per_s,
                    cleanup,
                    retention,
                )
            )
        return found

    def _learn_configs(self, names: list[str]) -> None:
        now = self._clock.steady()
        fresh = self._kept_at is not None and now - self._kept_at < _CONFIGS_S
        wanted = [one for one in names if one not in self._kept] if fresh else names
        cluster = self._cluster
        learnt: dict[str, tuple[str | None, Retention]] = dict(self._kept) if fresh else {}
        for begin in range(0, len(wanted), _ASKED_AT_ONCE):
            asked = [
                ConfigResource(ResourceType.TOPIC, one) for one in wanted[begin : begin + _ASKED_AT_ONCE]
            ]
            answers = cluster.admin().describe_configs(asked, request_timeout=cluster.timeout_s)
            for resource, future in answers.items():
                try:
                    entries = cluster.answer(future)
                except KafkaException:
                    continue  # Deleted meanwhile, or not for us to know.
                configs = {name: entry.value for name, entry in entries.items()}
                learnt[resource.name] = configs.get("cleanup.policy"), retention_of(configs)
        self._kept = learnt
        if not fresh:
            self._kept_at = now


def bounds_of(cluster: Cluster, partitions: Iterable[Partition]) -> dict[Partition, Bounds]:
    """Without those that nobody leads, or that are gone."""
    every = list(partitions)
    starts = _offsets(cluster, every, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    ends = _offsets(cluster, every, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {one: Bounds(starts[one], ends[one]) for one in every if one in starts and one in ends}


def first_since(cluster: Cluster, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, int]:
    """Of each partition the first offset that is not older; below 0 where there is none."""
    # Times before 1970 are not asked for: to the log, negative ones are names of places, or mean nothing.
    return _offsets(cluster, partitions, OffsetSpec.for_timestamp(max(0, time_ms)))


def _offsets(cluster: Cluster, partitions: Iterable[Partition], spec: Any) -> dict[Partition, int]:
    """Without those that nobody leads, or that are gone."""
    asked = {TopicPartition(topic, number): spec for topic, number in partitions}
    if not asked:
        return {}
    answers = cluster.admin().list_offsets(
        asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=cluster.timeout_s
    )
    found: dict[Partition, int] = {}
    failed: KafkaException | None = None
    for place, future in answers.items():
        try:
            found[place.topic, place.partition] = offset_told(cluster.answer(future))
        except KafkaException as error:
            failed = error
    if failed is not None and not found:
        raise from_kafka(failed, "asking for offsets") from failed
    return found
