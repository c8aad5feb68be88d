"""Checks who owns the topics that an app reads: the app itself, the app in ``of``, or nobody that the log knows.

The owner of a derived topic is the app whose flow derives it (``headrace.generations``). The owner of another topic is
the app that first recorded its schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.client.cluster import Cluster
from headrace.client.generations import all_generations
from headrace.client.recorded_schemas import OwnedVersions
from headrace.model.declarations import Topic
from headrace.model.errors import AppError

__all__ = ["owner_mistakes"]


def owner_mistakes(
    cluster: Cluster, topics: Sequence[Topic], app: str, recorded: Mapping[str, OwnedVersions]
) -> list[AppError]:
    mistakes = []
    generations = all_generations(cluster)
    for topic in topics:
        derived = generations.get(topic.name)
        exists = cluster.topic(topic.name) is not None
        owner, flow = "", ""
        if derived is not None and exists:
            owner, flow = derived.app, derived.flow
        elif topic.name in recorded and exists:
            owner = recorded[topic.name][0]
        problem, hint = "", ""
        if topic.of and not exists:
            problem = f"does not exist on this log, so app {topic.of!r} has not created it yet"
            hint = f"start app {topic.of!r} first"
        elif topic.of and owner and owner != topic.of:
            problem = f"is declared as a topic of app {topic.of!r}, but app {owner!r} owns it"
            hint = "remove of" if owner == app else f'declare it with of="{owner}"'
        elif flow and owner not in (topic.of, app):
            problem = f"is derived by flow {flow!r} of app {owner!r}"
            hint = f'declare it with of="{owner}"'
        elif flow and owner == app:
            problem = f"was derived by flow {flow!r} of this app, which the app no longer declares"
            hint = "declare the flow again, or delete the topic"
        if problem:
            mistakes.append(
                AppError(
                    f"topic {topic.name!r} {problem}", location=topic.location, code="HR-APP-OF", hint=hint
                )
            )
    return mistakes
