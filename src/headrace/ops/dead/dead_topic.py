"""The dead-letter topics of an app: one per flow, one per view, and those that Spring Kafka writes for the app's
topics.

``LetterCounts`` counts the letters. It reads each letter once. It cannot subtract offsets, because transaction markers
use offsets too. If a topic has many new letters, the offsets give an estimate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.app import App
from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.ops.dead.errors import NoDeadTopic
from headrace.ops.lag.log_snapshot import LogSnapshot, take_snapshot

__all__ = [
    "DeadTopic",
    "LetterCounts",
    "dead_topic_named",
    "dead_topics",
    "dead_topics_in_log",
    "spring_origin",
]

_SPRING_SUFFIXES = (".DLT", "-dlt")
_NEW_OFFSETS_MAX = 20_000
"""If a partition has more new offsets than this, the number of letters is estimated from the offsets."""


@dataclass(frozen=True, slots=True)
class DeadTopic:
    name: str
    kind: Literal["flow", "view", "spring"]
    owner: str
    """The flow or view that rejected the letters; for Spring, their original topic."""
    origins: frozenset[str]
    """The topics that its letters can come from. The headers of a letter are not trusted: they can name any topic."""


def dead_topics(app: App) -> Iterator[DeadTopic]:
    """Return all possible dead-letter topics. A topic is created with its first letter."""
    for flow in app.flows:
        yield DeadTopic(flow.dead_topic, "flow", flow.name, frozenset(topic.name for topic in flow.reads))
    for view in app.views:
        yield DeadTopic(view.dead_topic, "view", view.name, frozenset([view.topic.name]))
    for topic in app.topics:
        for suffix in _SPRING_SUFFIXES:
            yield DeadTopic(f"{topic.name}{suffix}", "spring", topic.name, frozenset([topic.name]))


def spring_origin(topic: str) -> str | None:
    """Return the topic whose dead letters Spring writes to ``topic``; None if the name is not one of Spring's."""
    return next((topic.removesuffix(suffix) for suffix in _SPRING_SUFFIXES if topic.endswith(suffix)), None)


def dead_topic_named(app: App, name: str) -> DeadTopic:
    for topic in dead_topics(app):
        if topic.name == name:
            return topic
    # Do not list the names: an HTTP client might not be allowed to see them.
    raise NoDeadTopic(
        f"app {app.name!r} has no dead-letter topic {name[:100]!r}",
        hint=f"list dead-letter topics with: headrace dead list {app_argument()}, or GET /v1/dead",
    )


def dead_topics_in_log(cluster: Cluster, app: App) -> tuple[list[DeadTopic], LogSnapshot]:
    """Return the dead-letter topics of flows and views, and Spring's topics that exist, with a snapshot."""
    topics = [*dead_topics(app)]
    log = take_snapshot(cluster, {topic.name for topic in topics})
    return [topic for topic in topics if topic.kind != "spring" or topic.name in log.partitions], log


@dataclass(slots=True)
class _PartitionCount:
    start: int
    end: int
    letters: int


class LetterCounts:
    """Counts the letters of dead-letter topics. It is thread-safe; one thread counts at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, int], _PartitionCount] = {}

    def count(self, topic: str, log: LogSnapshot) -> tuple[int, bool]:
        """Return the number of letters, and whether the number is exact."""
        with self._lock:
            numbers = range(log.partitions.get(topic, 0))
            counts = [self._count(topic, number, log) for number in numbers]
        return sum(count for count, _ in counts), all(exact for _, exact in counts)

    def _count(self, topic: str, number: int, log: LogSnapshot) -> tuple[int, bool]:
        start, end = log.starts[topic, number], log.committed_ends[topic, number]
        counted = self._counted.get((topic, number))
        if counted is None or counted.start != start or counted.end > end:
            counted = _PartitionCount(start, start, 0)
        if end - counted.end > _NEW_OFFSETS_MAX:
            return max(0, end - start), False
        counted.letters += sum(1 for _ in read(self._cluster, topic, {number: (counted.end, end)}))
        counted.end = max(counted.end, end)
        self._counted[topic, number] = counted
        return counted.letters, True
