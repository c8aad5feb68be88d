"""Runs the followers of a process. A follower applies a topic to a view's store. Several processes can share the views.

A consumer group decides which process follows which view. Topic ``headrace.followers.<app>`` has no records. Its
partition N stands for the Nth view that the app declares: the group member that gets the partition follows that view.
So a new process takes over some views, and the remaining processes take over the views of a lost process.

The group does not control write access. A follower may not know yet that it was replaced; the store then refuses its
writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from headrace.client.cluster import Cluster
from headrace.follow.follower import Follower
from headrace.runtime.part import Part
from headrace.stores.errors import StaleWriter

__all__ = ["Followers", "SharedViews"]

_STOP_S = 60.0
_SESSION_MS = 10_000
"""A process that sends no heartbeat for this time counts as lost."""


class Followers:
    """Runs each follower in its own thread. ``create`` creates the follower for the index of a view."""

    def __init__(self, create: Callable[[int], Follower]) -> None:
        self._create = create
        self._running: dict[int, tuple[Follower, Part, threading.Event]] = {}

    def start(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            if index not in self._running:
                follower, stop = self._create(index), threading.Event()
                part = Part(f"view {follower.view.name}", follower.run, stop)
                part.start()
                self._running[index] = follower, part, stop

    def stop(self, indexes: Sequence[int]) -> None:
        """Stop followers, and wait up to a minute for each. If one still runs when it is replaced, its store refuses
        its writes.
        """
        stopped = [self._running.pop(index) for index in indexes if index in self._running]
        for _, _, stop in stopped:
            stop.set()
        for _, part, _ in stopped:
            part.join(_STOP_S)

    def stop_all(self) -> None:
        """Stop all followers. ``all`` and ``failed`` still return them."""
        for _, _, stop in self._running.values():
            stop.set()
        for _, part, _ in self._running.values():
            part.join(_STOP_S)

    def restart_replaced(self) -> list[str]:
        """Restart the followers that another process replaced. Returns the names of their views."""
        indexes = [
            index for index, (_, part, _) in self._running.items() if isinstance(part.error, StaleWriter)
        ]
        names = [self._running.pop(index)[0].view.name for index in indexes]
        self.start(indexes)
        return names

    @property
    def all(self) -> list[Follower]:
        return [follower for follower, _, _ in self._running.values()]

    @property
    def running(self) -> list[Follower]:
        return [follower for follower, part, _ in self._running.values() if part.is_running]

    @property
    def failed(self) -> list[Part]:
        return [part for _, part, _ in self._running.values() if part.error is not None]


class SharedViews:
    """A member of the consumer group that shares the views. ``poll`` calls ``start`` and ``stop`` with view indexes."""

    def __init__(
        self,
        cluster: Cluster,
        app: str,
        group: str,
        views: int,
        start: Callable[[list[int]], None],
        stop: Callable[[list[int]], None],
    ) -> None:
        self.group = f"headrace.follow.{app}.{group}"
        self._views = views
        self._start = start
        self._stop = stop
        self._topic = f"headrace.followers.{app}"
        cluster.ensure_topic(self._topic, views)
        cluster.ensure_partitions(self._topic, views)
        self._consumer = cluster.consumer(
            {
                "group.id": self.group,
                "auto.offset.reset": "latest",
                "enable.partition.eof": False,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": _SESSION_MS,
            }
        )

    def __enter__(self) -> Self:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group, so that the other members do not wait for a timeout."""
        self._consumer.close()

    def poll(self, timeout_s: float) -> None:
        self._consumer.poll(timeout_s)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self._start(self._indexes(partitions))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._stop(self._indexes(partitions))
        consumer.incremental_unassign(partitions)

    def _indexes(self, partitions: list[TopicPartition]) -> list[int]:
        """Return the indexes of views, without views that the app no longer declares."""
        return sorted(partition.partition for partition in partitions if partition.partition < self._views)
