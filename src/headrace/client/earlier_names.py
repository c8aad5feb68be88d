"""Keeps the names of the topics that an earlier release created for the parts of an app.

The own topics of flows and views begin with the app's name: ``<app>.<flow>.progress``. Before release 0.1.0 they did
not: ``<flow>.progress``. Kafka cannot rename topics, so a part that has such topics continues with them. A part is
recognized by the log alone, and every process comes to the same result: the earlier topic exists and belongs to the
part, and the topic with the app's name does not exist.
"""

from __future__ import annotations

from typing import Protocol

from headrace.client.cluster import Cluster
from headrace.client.progress import current
from headrace.client.records import read
from headrace.model.declarations import Declared, OwnNames
from headrace.model.rejection import ERRORS

__all__ = ["HasOwnNames", "keep_earlier_names"]

_LETTERS_MAX = 100
_ORIGIN_HEADER = f"{ERRORS}topic"


class HasOwnNames(Declared, Protocol):
    @property
    def own_names(self) -> OwnNames: ...


def keep_earlier_names(cluster: Cluster, app: HasOwnNames) -> None:
    """Find the flows and views that have topics of an earlier release. From now on, their own topics are these."""
    own, earlier = app.own_names, OwnNames()
    names = cluster.metadata().topics
    for flow in app.flows:
        name = earlier.topic(flow.name, "progress")
        if name in names and own.topic(flow.name, "progress") not in names:
            progress = current(cluster, name)
            if progress is not None and progress.generation.app == app.name:
                own.earlier.add(flow.name)
    for view in app.views:
        name = earlier.topic(view.name, "dead")
        if (
            name in names
            and own.topic(view.name, "dead") not in names
            and _has_letters_of(cluster, name, view.topic.name)
        ):
            own.earlier.add(view.name)


def _has_letters_of(cluster: Cluster, dead_topic: str, topic: str) -> bool:
    """Whether the first letters come from the topic, or from a generation of it."""
    start = cluster.starts(dead_topic)[0]
    end = min(cluster.ends(dead_topic)[0], start + _LETTERS_MAX)
    for message in read(cluster, dead_topic, {0: (start, end)}):
        origin = dict(message.headers() or []).get(_ORIGIN_HEADER)
        if isinstance(origin, bytes) and (
            origin == topic.encode() or origin.startswith(f"{topic}.g".encode())
        ):
            return True
    return False
