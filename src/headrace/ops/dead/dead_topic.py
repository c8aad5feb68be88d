"""The topics of dead letters that an app has: one of each flow, one of each view, and those that Spring made for a
topic of the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.ops.dead.errors import NoDeadTopic
from headrace.ops.lag.log_look import LogLook, look_at

__all__ = ["DeadTopic", "dead_topics", "look_at_dead", "named_dead", "spring_origin"]

_SPRING_ENDS = (".DLT", "-dlt")


@dataclass(frozen=True, slots=True)
class DeadTopic:
    name: str
    kind: Literal["flow", "view", "spring"]
    of: str
    """The flow or the view whose letters they are; of Spring's, the topic that they came from."""
    origins: frozenset[str]
    """Topics that its letters can come from. A letter's headers may name any other."""


def dead_topics(app: App) -> Iterator[DeadTopic]:
    """Those that there may be; a topic is made with its first letter."""
    for flow in app.flows:
        yield DeadTopic(flow.dead_topic, "flow", flow.name, frozenset(topic.name for topic in flow.reads))
    for view in app.views:
        yield DeadTopic(view.dead_topic, "view", view.name, frozenset([view.topic.name]))
    for topic in app.topics:
        for end in _SPRING_ENDS:
            yield DeadTopic(f"{topic.name}{end}", "spring", topic.name, frozenset([topic.name]))


def spring_origin(topic: str) -> str | None:
    """The topic whose dead letters Spring writes to a topic of this name; None for any other name."""
    return next((topic.removesuffix(end) for end in _SPRING_ENDS if topic.endswith(end)), None)


def named_dead(app: App, name: str) -> DeadTopic:
    for one in dead_topics(app):
        if one.name == name:
            return one
    # Without their names: whoever asks over HTTP may not be allowed to see them.
    raise NoDeadTopic(
        f"app {app.name!r} has no topic {name[:100]!r} of dead letters",
        hint="list them: headrace dead list MODULE:APP, or GET /v1/dead",
    )


def look_at_dead(cluster: Cluster, app: App) -> tuple[list[DeadTopic], LogLook]:
    """All of flows and views, Spring's where the log has them; and what the log has."""
    every = [*dead_topics(app)]
    look = look_at(cluster, {one.name for one in every})
    return [one for one in every if one.kind != "spring" or one.name in look.partitions], look
