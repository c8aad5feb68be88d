"""The origin of a view: the topic to follow and, if a flow writes the topic, the flow's newest generation.

``open_changelog`` opens a reader of the topic at the offsets of a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.progress import current
from headrace.follow.changelog import Changelog, FlowProgress
from headrace.follow.flow_changelog import FlowChangelog
from headrace.follow.realtime_changelog import RealtimeChangelog
from headrace.follow.topic_changelog import TopicChangelog
from headrace.model.code_digest import upcast_digest
from headrace.model.declarations import Flow, View
from headrace.model.errors import AppError
from headrace.model.progress import Batch, Generation, Sources
from headrace.model.schema import fields_from_json
from headrace.model.upcast import Upcaster
from headrace.stores.errors import SchemaRefused
from headrace.stores.position import Position, ViewSchema
from headrace.truth import expect_source_of_truth

__all__ = ["NotReady", "Origin", "find_origin", "flow_that_writes", "open_changelog"]


@dataclass(frozen=True, slots=True)
class NotReady:
    """The topic of the view cannot be followed yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class Origin:
    topic: str
    topic_id: str
    partitions: int
    schema: ViewSchema
    topic_key: tuple[str, ...]
    """The fields that form the key of a record."""
    generation: Generation | None = None
    generation_offset: int = 0
    last: Batch | None = None
    """The newest batch when the origin was read."""
    progress: str = ""
    progress_id: str = ""
    upcast: Upcaster | None = None
    """Converts older values of a topic that no flow writes."""

    @property
    def generation_number(self) -> int:
        return self.generation.generation if self.generation else 0

    def start(self, cluster: Cluster, removed_below: dict[int, int], now_ms: int) -> Position:
        """Return the position before the first record of the topic. For a real-time flow, return the position before
        the first record of the generation, because its progress records do not show which rows belong to the
        generation.
        """
        offsets = cluster.starts(self.topic)
        if self.generation is not None and self.generation.latency == "realtime":
            start_offsets = self.generation.output_starts
            offsets = {
                number: max(offset, start_offsets.get(str(number), 0)) for number, offset in offsets.items()
            }
        return Position(
            self.topic,
            self.topic_id,
            offsets,
            generation=self.generation_number,
            progress_id=self.progress_id,
            progress_offset=self.generation_offset + 1 if self.generation else 0,
            removed_below=removed_below,
            complete_ms=now_ms,
            stored_ms=now_ms,
        )


def flow_that_writes(topic: str, flows: Sequence[Flow]) -> Flow | None:
    return next((flow for flow in flows if flow.writes.name == topic), None)


def find_origin(cluster: Cluster, view: View, flows: Sequence[Flow]) -> Origin | NotReady:
    flow = flow_that_writes(view.topic.name, flows)
    return _topic_origin(cluster, view) if flow is None else _flow_origin(cluster, view, flow)


def open_changelog(
    cluster: Cluster,
    topic: str,
    offsets: Mapping[int, int],
    progress: FlowProgress | None,
    sources: Sources | None,
    max_rows: int,
) -> Changelog:
    """Open the reader for the kind of topic. ``progress`` is None if no flow writes the topic. ``sources`` is None
    unless a real-time flow writes the topic.
    """
    if progress is None:
        return TopicChangelog(cluster, topic, offsets, max_rows=max_rows)
    if sources is None:
        return FlowChangelog(cluster, progress, topic, offsets, max_rows=max_rows)
    return RealtimeChangelog(cluster, progress, topic, offsets, sources, max_rows=max_rows)


def _topic_origin(cluster: Cluster, view: View) -> Origin | NotReady:
    topic = view.topic
    info = cluster.topic(topic.name)
    if info is None:
        return NotReady(f"topic {topic.name!r} does not exist yet")
    if topic.schema is None:
        raise AppError(
            f"view {view.name!r} follows topic {topic.name!r}, but the topic has no schema and no flow writes it",
            location=view.location,
            hint="declare a schema for the topic",
        )
    schema = _check_key(view, ViewSchema(topic.schema.fields, view.key, upcast_digest(topic.upcast)))
    expect_source_of_truth(topic.name, cluster.configs(topic.name), f"view {view.name!r}")
    return Origin(topic.name, info.id, info.partitions, schema, topic.key, upcast=topic.upcast)


def _flow_origin(cluster: Cluster, view: View, flow: Flow) -> Origin | NotReady:
    progress = cluster.topic(flow.progress_topic)
    found = current(cluster, flow.progress_topic) if progress else None
    if progress is None or found is None:
        return NotReady(f"flow {flow.name!r} has not been started yet")
    generation = found.generation
    info = cluster.topic(generation.output)
    if info is None or info.id != generation.output_id:
        state = "does not exist" if info is None else "was deleted and recreated after the flow wrote it"
        return NotReady(f"topic {generation.output!r} of flow {flow.name!r} {state}; rebuild the flow")
    if generation.latency == "realtime" and "compact" in (
        cluster.configs(info.name).get("cleanup.policy") or ""
    ):
        return NotReady(
            f"topic {info.name!r} is compacted, but flow {flow.name!r} writes it in real time: compaction could retain"
            " an outdated repeated row; set cleanup.policy=delete and rebuild the flow"
        )
    key = view.key or tuple(generation.key)
    schema = _check_key(view, ViewSchema(fields_from_json(generation.schema), key))
    return Origin(
        info.name,
        info.id,
        info.partitions,
        schema,
        tuple(generation.key),
        generation,
        found.generation_offset,
        found.last,
        flow.progress_topic,
        progress.id,
    )


def _check_key(view: View, schema: ViewSchema) -> ViewSchema:
    missing = [name for name in schema.key if name not in schema.names]
    if missing or not schema.key:
        problem = f"its key field {missing[0]!r} is not a column" if missing else "it has no key"
        raise SchemaRefused(
            f"view {view.name!r}: {problem}",
            hint=f"the columns are {', '.join(schema.names)}; set key=… to one or more of them",
        )
    return schema
