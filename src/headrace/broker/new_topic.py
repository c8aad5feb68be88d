"""A topic that someone asks for, and one that is to grow: the rules for how many partitions it gets.

Kafka's rules for a cluster of one broker: a replica can only be here, and only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.broker.refusal import Refusal
from headrace.broker.settings import BrokerSettings
from headrace.broker.topic import Topic
from headrace.wire.codes import ErrorCode

__all__ = ["Growth", "NewTopic"]

_BY_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """As in CreateTopics: -1 asks for the default; ``assignments`` are pairs of partition and its brokers."""

    name: str
    partitions: int = _BY_DEFAULT
    replication_factor: int = _BY_DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)

    def partition_count(self, settings: BrokerSettings) -> int:
        """How many partitions it will have; ``Refusal`` where it cannot be had."""
        if self.assignments:
            return self._assigned_count(settings)
        if self.replication_factor == 0 or self.replication_factor < _BY_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {self.replication_factor}: give 1, or -1 for the default",
            )
        if self.partitions == 0 or self.partitions < _BY_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_PARTITIONS,
                f"{self.partitions} partitions: give at least 1, or -1 for the default",
            )
        if self.replication_factor > 1:
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {self.replication_factor}: there is 1 broker, so a partition has 1"
                " replica",
            )
        count = settings.num_partitions if self.partitions == _BY_DEFAULT else self.partitions
        _check_count(count, settings)
        return count

    def _assigned_count(self, settings: BrokerSettings) -> int:
        if self.replication_factor != _BY_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, "with assignments given, the replication factor must be -1"
            )
        if self.partitions != _BY_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "with assignments given, the number of partitions must be -1",
            )
        seen = set()
        for partition, brokers in self.assignments:
            if partition in seen:
                raise Refusal(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition} is assigned more than once"
                )
            seen.add(partition)
            _check_brokers(brokers, settings.node_id)
        if seen != set(range(len(seen))):
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{len(seen)} partitions are assigned, so they must be 0 to {len(seen) - 1}",
            )
        _check_count(len(seen), settings)
        return len(seen)


@dataclass(frozen=True, slots=True)
class Growth:
    """As in CreatePartitions: ``count`` is how many partitions there shall be, ``assignments`` the new
    ones' brokers.
    """

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None

    def check(self, topic: Topic, settings: BrokerSettings) -> None:
        """``Refusal`` if the topic cannot grow like this."""
        added = self.count - topic.partitions
        if added <= 0:
            raise Refusal(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name} has {topic.partitions} partitions; {self.count} would not be more",
            )
        _check_count(self.count, settings)
        if self.assignments is None:
            return
        if len(self.assignments) != added:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partitions would be added, but {len(self.assignments)} are assigned",
            )
        for brokers in self.assignments:
            _check_brokers(brokers, settings.node_id)


def _check_count(count: int, settings: BrokerSettings) -> None:
    if count > settings.partitions_per_topic_max:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"{count} partitions: this broker allows {settings.partitions_per_topic_max} per topic",
        )


def _check_brokers(brokers: Sequence[int], node_id: int) -> None:
    if not brokers:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned to no broker")
    strange = [broker for broker in brokers if broker != node_id]
    if strange:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"broker {strange[0]} is not in this cluster, which has broker {node_id} only",
        )
    if len(brokers) > 1:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"a partition has broker {node_id} more than once",
        )
