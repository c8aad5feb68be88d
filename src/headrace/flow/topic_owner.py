"""The owner of a derived topic: the flow that its record in ``headrace.generations`` names.

Two flows must not write one topic, whatever the apps they belong to: their rows would be mixed, and no reader could
tell them apart. So a flow writes the record together with its first progress record, and checks it before it opens the
topic's transactional id, which would fence the owner.
"""

from __future__ import annotations

import time

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import TOPIC, find_generations
from headrace.client.generations_writer import ensure_generations_topic
from headrace.client.transactional_writer import OutgoingRecord
from headrace.flow.errors import TopicTaken
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations, encode

__all__ = ["claim_topic", "expect_owner"]


def expect_owner(cluster: Cluster, app: App, flow: Flow) -> None:
    """Raise ``TopicTaken`` if another flow writes the flow's topic. A topic that was deleted has no owner."""
    recorded = find_generations(cluster, flow.writes.name)
    if recorded is None or (recorded.app, recorded.flow) == (app.name, flow.name):
        return
    if cluster.topic(recorded.stable) is None:
        return
    if recorded.app == app.name:
        what = (
            f"topic {recorded.stable} is derived by flow {recorded.flow}, and flow {flow.name} writes it too"
        )
        hint = f"if the flow was renamed, keep its name on the log: @app.flow(..., name={recorded.flow!r})"
    else:
        what = (
            f"topic {recorded.stable} is derived by flow {recorded.flow} of app {recorded.app}, but this app is"
            f" {app.name}"
        )
        hint = f"write another topic; if app {recorded.app} was renamed, change its name back"
    raise TopicTaken(
        what,
        detail=f"{TOPIC} has the generations of each derived topic; it names one flow per topic",
        hint=hint,
    )


def claim_topic(cluster: Cluster, app: App, flow: Flow, entry: Entry) -> list[OutgoingRecord]:
    """Return the record that names the flow as the owner of its topic; nothing if it is recorded already."""
    recorded = find_generations(cluster, flow.writes.name)
    if recorded is not None and (recorded.app, recorded.flow) == (app.name, flow.name):
        return []
    ensure_generations_topic(cluster)
    begun = msgspec.structs.replace(entry, begun_ms=time.time_ns() // 1_000_000)
    generations = FlowGenerations(flow.name, app.name, flow.writes.name, begun.number, begun.number, (begun,))
    return [OutgoingRecord(TOPIC, generations.stable.encode(), encode(generations))]
