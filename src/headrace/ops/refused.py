"""Rows that a store has refused: they are dead letters of the view, with their place in the topic, and not in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.model.view import View

__all__ = ["refused_places"]

_PREFIX = "__headrace.errors."


def refused_places(
    cluster: Cluster, view: View, topic: str, offsets: Mapping[int, int]
) -> set[tuple[int, int]]:
    """Partition and offset of those before ``offsets``."""
    if cluster.topic(view.dead_topic) is None:
        return set()
    starts, ends = cluster.starts(view.dead_topic), cluster.ends(view.dead_topic)
    found = set()
    for message in read(cluster, view.dead_topic, {one: (starts[one], end) for one, end in ends.items()}):
        headers: Iterable[tuple[str, object]] = message.headers() or []  # type: ignore[assignment]
        told = {name: text for name, text in headers if isinstance(text, bytes)}
        try:
            log = told[f"{_PREFIX}topic"].decode()
            place = int(told[f"{_PREFIX}partition"]), int(told[f"{_PREFIX}offset"])
        except (KeyError, ValueError):
            continue  # Somebody else's record: it names no place, and so excuses nothing.
        if log == topic and place[1] < offsets.get(place[0], 0):
            found.add(place)
    return found
