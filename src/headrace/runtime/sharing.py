"""Which of an app's views a process follows, where several processes share them: a consumer group says.

Topic ``headrace.followers.<app>`` has no records. Each of its partitions stands for a view, in the order in which the
app declares them, and whoever the group gives a partition follows that view. So a process that is added takes some
over, and those of one that is gone move on, as partitions do. It decides who works, not who may write: that is for
the stores, which refuse a follower that was replaced and does not know it yet.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from headrace.client.cluster import Cluster

__all__ = ["Sharing"]

_AWAY_MS = 10_000
"""After so long without a sign of life a process counts as gone."""


class Sharing:
    """``begin`` and ``end`` take the places of views in the app; they are called by ``look``, in its thread."""

    def __init__(
        self,
        cluster: Cluster,
        app: str,
        group: str,
        views: int,
        begin: Callable[[list[int]], None],
        end: Callable[[list[int]], None],
    ) -> None:
        self.group = f"headrace.follow.{app}.{group}"
        self._views = views
        self._begin = begin
        self._end = end
        self._topic = f"headrace.followers.{app}"
        cluster.ensure_topic(self._topic, views)
        cluster.ensure_partitions(self._topic, views)
        self._consumer = cluster.consumer(
            {
                "group.id": self.group,
                "auto.offset.reset": "latest",
                "enable.partition.eof": False,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": _AWAY_MS,
            }
        )

    def __enter__(self) -> Self:
        self._consumer.subscribe(
            [self._topic], on_assign=self._given, on_revoke=self._taken, on_lost=self._taken
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the group, so that the others need not wait."""
        self._consumer.close()

    def look(self, timeout_s: float) -> None:
        self._consumer.poll(timeout_s)

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self._begin(self._places(partitions))

    def _taken(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._end(self._places(partitions))
        consumer.incremental_unassign(partitions)

    def _places(self, partitions: list[TopicPartition]) -> list[int]:
        """An app may have had more views once."""
        return sorted(one.partition for one in partitions if one.partition < self._views)
