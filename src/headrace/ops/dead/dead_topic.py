"""The dead-letter topics of an app: one per flow, one per view, and those that Spring Kafka writes for the app's
topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.app import App
from headrace.app_argument import app_argument
from headrace.ops.dead.errors import NoDeadTopic
from headrace.ops.lag.log_snapshot import LogSnapshot

__all__ = [
    "DeadTopic",
    "dead_topic_named",
    "dead_topics",
    "dead_topics_in_log",
    "spring_origin",
]

_SPRING_SUFFIXES = (".DLT", "-dlt")


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
    """Find a topic by its name, or by the name of its flow or view."""
    for topic in dead_topics(app):
        if name == topic.name or (name == topic.owner and topic.kind != "spring"):
            return topic
    # Do not list the names: an HTTP client might not be allowed to see them.
    raise NoDeadTopic(
        f"app {app.name!r} has no dead-letter topic {name[:100]!r}",
        hint=f"list dead-letter topics with: headrace dead list {app_argument()}, or GET /v1/dead",
    )


def dead_topics_in_log(app: App, log: LogSnapshot) -> list[DeadTopic]:
    """Return the dead-letter topics of flows and views, and Spring's topics that exist."""
    return [topic for topic in dead_topics(app) if topic.kind != "spring" or topic.name in log.partitions]
