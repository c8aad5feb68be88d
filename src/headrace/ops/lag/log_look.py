"""One look at the log, in a fixed number of questions however many records there are: where partitions begin and end,
what they keep, and how large they are.
"""

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

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.client.offset_answer import offset_told
from headrace.clock import Clock
from headrace.ops.lag.reader import Partition
from headrace.ops.lag.retention import Retention, retention_of
from headrace.ops.log_dirs import sizes_of

__all__ = ["KeptLook", "LogLook", "look_at", "offsets_at"]

_MISSING_S = 2.0


@dataclass(frozen=True, slots=True)
class LogLook:
    """A topic that is not there is in none of it."""

    partitions: Mapping[str, int] = field(default_factory=dict)
    starts: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    committed_ends: Mapping[Partition, int] = field(default_factory=dict)
    """Without what belongs to a transaction that is open."""
    retentions: Mapping[str, Retention] = field(default_factory=dict)
    sizes: Mapping[Partition, int] = field(default_factory=dict)
    """In bytes, where that is told."""

    def bytes_each(self, partition: Partition) -> float | None:
        """Of a record, on the average of all that there are: an estimate for any of them."""
        size, count = self.sizes.get(partition), self.ends[partition] - self.starts[partition]
        return None if size is None or count <= 0 else size / count


def look_at(cluster: Cluster, topics: Collection[str]) -> LogLook:
    counts = _partitions(cluster, topics)
    every = [(name, number) for name, count in counts.items() for number in range(count)]
    if not every:
        return LogLook()
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    sizes = sizes_of(cluster, every)
    return LogLook(
        counts,
        _offsets(cluster, every, OffsetSpec.earliest(), committed=False),  # type: ignore[no-untyped-call]
        _offsets(cluster, every, latest, committed=False),
        _offsets(cluster, every, latest, committed=True),
        _retentions(cluster, counts),
        sizes.bytes if sizes else {},
    )


class KeptLook:
    """A look again and again: where partitions end is asked each time, and what changes seldom every few seconds."""

    def __init__(self, cluster: Cluster, clock: Clock, keep_s: float = 10.0) -> None:
        self._cluster = cluster
        self._clock = clock
        self._keep_s = keep_s
        self._topics: Collection[str] = ()
        self._whole: LogLook | None = None
        self._looked = 0.0

    def look(self, topics: Collection[str]) -> LogLook:
        whole, now = self._whole, self._clock.steady()
        # What is not there yet is looked for sooner.
        keep_s = self._keep_s if whole and len(whole.partitions) == len(topics) else _MISSING_S
        if whole is None or topics != self._topics or now - self._looked >= keep_s:
            self._whole = None
            found = look_at(self._cluster, topics)
            self._whole, self._topics, self._looked = found, set(topics), now
            return found
        try:
            return replace(
                whole,
                ends=_offsets(self._cluster, whole.starts, OffsetSpec.latest(), committed=False),  # type: ignore[no-untyped-call]
                committed_ends=_offsets(self._cluster, whole.starts, OffsetSpec.latest(), committed=True),  # type: ignore[no-untyped-call]
            )
        except LogError:
            # A topic may be gone, or another one.
            self._whole = None
            raise


def offsets_at(
    cluster: Cluster, partitions: Collection[Partition], at_ms: int
) -> dict[Partition, int | None]:
    """The first offset written at that time or later; None where there is none."""
    if not partitions:
        return {}
    found = _offsets(cluster, partitions, OffsetSpec.for_timestamp(at_ms), committed=False)
    return {place: offset if offset >= 0 else None for place, offset in found.items()}


def _partitions(cluster: Cluster, topics: Collection[str]) -> dict[str, int]:
    if not topics:
        return {}
    asked = TopicCollection(sorted(topics))
    answers = cluster.admin().describe_topics(asked, request_timeout=cluster.timeout_s)
    found: dict[str, int] = {}
    for name, answer in answers.items():
        try:
            found[name] = len(cluster.answer(answer).partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise from_kafka(error, f"asking for topic {name!r}") from error
    return found


def _offsets(
    cluster: Cluster, partitions: Iterable[Partition], spec: Any, *, committed: bool
) -> dict[Partition, int]:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    asked = {TopicPartition(topic, number): spec for topic, number in partitions}
    answers = cluster.admin().list_offsets(asked, isolation_level=level, request_timeout=cluster.timeout_s)
    try:
        return {
            (place.topic, place.partition): offset_told(cluster.answer(answer))
            for place, answer in answers.items()
        }
    except KafkaException as error:
        raise from_kafka(error, "asking for offsets") from error


def _retentions(cluster: Cluster, topics: Iterable[str]) -> dict[str, Retention]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    answers = cluster.admin().describe_configs(resources, request_timeout=cluster.timeout_s)
    try:
        return {
            resource.name: retention_of({name: entry.value for name, entry in cluster.answer(answer).items()})
            for resource, answer in answers.items()
        }
    except KafkaException as error:
        raise from_kafka(error, "asking for the configs of topics") from error
