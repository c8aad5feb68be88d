"""The generations whose rows a flow reads, and what a switch of them means for the flow.

A flow reads the rows of one generation of the flow upstream, from the topic to which that generation writes only its
own rows. This holds for flows of the same app and, for topics of events, of other apps. The first generation writes the
stable topic, until another one replaces it. Then the stable topic gets the difference between the two: rows that
replace earlier ones, with the times of old events, and tombstones. As events they would be counted twice, be late, or
become dead letters. So a flow that reads the stable topic stops before the difference.

A switch is recorded in ``headrace.generations`` before its first row is written to the stable topic. If the record
shows no switch after the rows of a batch were read, they contain nothing of a difference.

In a table a row replaces the earlier row of its key, and a tombstone deletes it. So a flow reads a table of another app
by its stable name, with the differences.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import find_generations, generations_of
from headrace.flow.errors import InputReplaced, SwitchUnderWay, UpstreamSwitched, rebuild_hint
from headrace.model.declarations import Flow, Topic
from headrace.model.generations import FlowGenerations
from headrace.model.progress import Input

__all__ = ["Upstream", "find_upstream", "log_topic", "newest_topic", "why_unreadable"]


def find_upstream(cluster: Cluster, app: App, topic: Topic) -> FlowGenerations | None:
    """Return the generations of the flow that derives the topic; None if no flow does, or it has not started."""
    if topic.of is not None:
        return find_generations(cluster, topic.name) if topic.kind == "events" else None
    writer = app.writer_of(topic)
    return None if writer is None else generations_of(cluster, writer)


def log_topic(cluster: Cluster, app: App, topic: Topic) -> str:
    """Return the name of a topic in the log. For a derived topic, this is the output of the serving generation."""
    generations = find_upstream(cluster, app, topic)
    return topic.name if generations is None else generations.serving_entry.topic


def newest_topic(cluster: Cluster, app: App, topic: Topic) -> str:
    """Return the topic that a new generation reads. If a flow of the same app that writes the topic is being rebuilt,
    this is the output of the generation that is being built. Another app may never switch to its new generation.
    """
    generations = find_upstream(cluster, app, topic)
    if generations is None:
        return topic.name
    building = generations.building if topic.of is None else None
    return (building or generations.serving_entry).topic


def why_unreadable(
    flow: Flow, topic: Topic, log: str, upstream: FlowGenerations, *, is_kept: bool
) -> InputReplaced | SwitchUnderWay | None:
    """Return why a generation of the flow must not continue with ``log``; None if it may.

    ``is_kept``: it served before. Such a generation continues with the rows of a kept generation of another app.
    """
    if upstream.switching and (log == upstream.stable or topic.of is None):
        return SwitchUnderWay(upstream.flow, upstream.switching)
    has_own_rows = log in [entry.topic for entry in upstream.entries]
    if topic.of is not None and not (has_own_rows and (is_kept or log == upstream.serving_entry.topic)):
        return UpstreamSwitched(
            f"flow {flow.name} reads {log}, but generation {upstream.serving} of topic {topic.name} of app"
            f" {upstream.app} serves now, and writes {upstream.serving_entry.topic}",
            detail=f"{topic.name} has the difference between the generations: rows that replace earlier ones, with the"
            " times of old events, and tombstones; a flow cannot read them as events",
            hint=rebuild_hint(flow.name),
        )
    if not has_own_rows:
        return InputReplaced(
            f"flow {flow.name} reads {log}, but no generation of flow {upstream.flow} writes only its own"
            f" rows to it; generation {upstream.serving} serves and writes {upstream.serving_entry.topic}",
            detail="the flow that writes the topic was rebuilt",
            hint=rebuild_hint(flow.name),
        )
    return None


class Upstream:
    """The derived inputs of a generation that runs. Call ``expect_same`` after the rows of a batch were read, and
    before they are committed.
    """

    def __init__(
        self, cluster: Cluster, app: App, flow: Flow, inputs: Sequence[Input], *, is_kept: bool
    ) -> None:
        self._cluster = cluster
        self._flow = flow
        self._is_kept = is_kept
        logs = {source.topic: source.log for source in inputs}
        # Only the stable topic gets a difference. But other apps may also drop a generation, or let it rest.
        self._inputs = [
            (topic, logs[topic.name])
            for topic in flow.streams
            if topic.of is not None or (app.writer_of(topic) and logs[topic.name] == topic.name)
        ]

    def expect_same(self) -> None:
        """Raise if the flow must stop because a flow upstream switches or has switched."""
        for topic, log in self._inputs:
            upstream = find_generations(self._cluster, topic.name)
            if upstream is None:
                continue
            error = why_unreadable(self._flow, topic, log, upstream, is_kept=self._is_kept)
            if error is not None:
                raise error
