"""Tells the operator when a topic of another app switches to another generation.

The topic then receives the difference between the two generations, so this app goes on by itself. But its own rows may
change without any change of its own, and a flow that counts events counts the rows of the difference too.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.cluster import Cluster
from headrace.client.generations import all_generations, end_of_generations
from headrace.model.declarations import Declared
from headrace.model.generations import FlowGenerations
from headrace.model.other_apps import topics_of_others

__all__ = ["OtherApps"]


class OtherApps:
    def __init__(self, cluster: Cluster, app: Declared, note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._topics = [topic.name for topic in topics_of_others(app)]
        self._note = note
        self._end = -1
        self._serving: dict[str, int] = {}

    def poll(self) -> None:
        """Note each topic whose serving generation is another one than at the last call."""
        if not self._topics:
            return
        end = end_of_generations(self._cluster)
        if end == self._end:
            return
        self._end = end
        generations = all_generations(self._cluster)
        for topic in self._topics:
            derived = generations.get(topic)
            if derived is None:
                continue
            before = self._serving.setdefault(topic, derived.serving)
            if before != derived.serving:
                self._serving[topic] = derived.serving
                self._note(_line(topic, derived, before))


def _line(topic: str, derived: FlowGenerations, before: int) -> str:
    last = derived.switches[-1] if derived.switches else None
    published = (
        f"{last.published} records" if last is not None and last.after == derived.serving else "records"
    )
    return (
        f"topic {topic} of app {derived.app}: generation {derived.serving} serves now, after generation {before};"
        f" {published} of the difference were written to the topic, with the header headrace.switch"
    )
