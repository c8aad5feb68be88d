"""Validates requests to create a topic or to add partitions, with Kafka's rules for a cluster of one broker.

Each partition has one replica, on this broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.broker.refusal import Refusal
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics.topic import Topic
from headrace.wire.codes import ErrorCode

__all__ = ["Growth", "NewTopic"]

_USE_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic of CreateTopics. -1 means the default. ``assignments`` are pairs of a partition and its brokers."""

    name: str
    partitions: int = _USE_DEFAULT
    replication_factor: int = _USE_DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)

    def partition_count(self, settings: BrokerSettings) -> int:
        """Return the number of partitions. Raises ``Refusal`` if the request is invalid."""
        if self.assignments:
            return self._assigned_count(settings)
        if self.replication_factor == 0 or self.replication_factor < _USE_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"invalid replication factor {self.replication_factor}: use 1, or -1 for the default",
            )
        if self.partitions == 0 or self.partitions < _USE_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_PARTITIONS,
                f"invalid number of partitions {self.partitions}: use at least 1, or -1 for the default",
            )
        if self.replication_factor > 1:
            raise Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {self.replication_factor} is larger than the number of brokers: use 1",
            )
        count = settings.num_partitions if self.partitions == _USE_DEFAULT else self.partitions
        _check_count(count, settings)
        return count

    def _assigned_count(self, settings: BrokerSettings) -> int:
        if self.replication_factor != _USE_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "the request has assignments: the replication factor must then be -1",
            )
        if self.partitions != _USE_DEFAULT:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "the request has assignments: the number of partitions must then be -1",
            )
        assigned = set()
        for partition, brokers in self.assignments:
            if partition in assigned:
                raise Refusal(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition} is assigned more than once"
                )
            assigned.add(partition)
            _check_brokers(brokers, settings.node_id)
        if assigned != set(range(len(assigned))):
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the assignments have {len(assigned)} partitions, so their numbers must be 0 to {len(assigned) - 1}",
            )
        _check_count(len(assigned), settings)
        return len(assigned)


@dataclass(frozen=True, slots=True)
class Growth:
    """A topic of CreatePartitions. ``count`` is the new total. ``assignments`` lists the brokers of new partitions."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None

    def check(self, topic: Topic, settings: BrokerSettings) -> None:
        """Raise ``Refusal`` if these partitions cannot be added to the topic."""
        added = self.count - topic.partitions
        if added <= 0:
            raise Refusal(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name} already has {topic.partitions} partitions: the new number, {self.count}, must be"
                " higher",
            )
        _check_count(self.count, settings)
        if self.assignments is None:
            return
        if len(self.assignments) != added:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the request adds {added} partitions, but has assignments for {len(self.assignments)}",
            )
        for brokers in self.assignments:
            _check_brokers(brokers, settings.node_id)


def _check_count(count: int, settings: BrokerSettings) -> None:
    if count > settings.partitions_per_topic_max:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"too many partitions for a topic: {count} (headrace.topic.partitions.max is"
            f" {settings.partitions_per_topic_max})",
        )


def _check_brokers(brokers: Sequence[int], node_id: int) -> None:
    if not brokers:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an assignment has no broker")
    unknown = [broker for broker in brokers if broker != node_id]
    if unknown:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"broker {unknown[0]} is not in this cluster: use broker {node_id}",
        )
    if len(brokers) > 1:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"a partition is assigned to broker {node_id} more than once",
        )
