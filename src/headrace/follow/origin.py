"""The origin of a part of a view: the topic to follow and, if a flow writes the topic, a generation of the flow.

``open_changelog`` opens a reader of the topic at the offsets of a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.generations import generations_of
from headrace.client.progress import current, generation_at
from headrace.follow.changelog import Changelog, FlowProgress
from headrace.follow.flow_changelog import FlowChangelog
from headrace.follow.realtime_changelog import RealtimeChangelog
from headrace.follow.topic_changelog import TopicChangelog
from headrace.model.code_digest import upcast_digest
from headrace.model.declarations import Flow, View
from headrace.model.errors import AppError
from headrace.model.generations import Entry
from headrace.model.progress import Batch, Generation, Sources
from headrace.model.schema import fields_from_json
from headrace.model.upcast import Upcaster
from headrace.stores.errors import SchemaRefused
from headrace.stores.position import Position, ViewSchema
from headrace.truth import expect_source_of_truth

__all__ = ["NotReady", "Origin", "continued", "find_origin", "flow_that_writes", "open_changelog"]


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
    is_last: bool = True
    """False if the generation continues in another topic after the batches that are still to be read from this one."""
    upcast: Upcaster | None = None
    """Converts older values of a topic that no flow writes."""

    @property
    def generation_number(self) -> int:
        return self.generation.generation if self.generation else 0

    @property
    def is_realtime(self) -> bool:
        return self.generation is not None and self.generation.latency == "realtime"

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


def find_origin(
    cluster: Cluster,
    view: View,
    flows: Sequence[Flow],
    entry: Entry | None = None,
    position: Position | None = None,
) -> Origin | NotReady:
    """Return the origin of the view's part. If a flow writes the topic, it is the generation of ``entry`` (default: the
    serving generation), in the topic that has the next rows after ``position``.
    """
    flow = flow_that_writes(view.topic.name, flows)
    if flow is None:
        return _topic_origin(cluster, view)
    if entry is None:
        generations = generations_of(cluster, flow)
        if generations is None:
            return _not_started(flow)
        entry = generations.serving_entry
    return _flow_origin(cluster, view, flow, entry, position)


def _not_started(flow: Flow) -> NotReady:
    return NotReady(f"flow {flow.name!r} has not been started yet")


def continued(origin: Origin, position: Position) -> Position | None:
    """Return the position at which the part continues, if its generation continued in the topic of the origin. The part
    has all batches before. None if the position is in that topic already.
    """
    generation = origin.generation
    if generation is None or generation.continues < 0 or position.topic_id == origin.topic_id:
        return None
    if (position.progress_id, position.generation) != (origin.progress_id, generation.generation):
        return None
    starts = {int(number): offset for number, offset in generation.output_starts.items()}
    return msgspec.structs.replace(
        position, topic=origin.topic, topic_id=origin.topic_id, offsets=starts, removed_below={}
    )


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


def _flow_origin(
    cluster: Cluster, view: View, flow: Flow, entry: Entry, position: Position | None
) -> Origin | NotReady:
    progress = cluster.topic(entry.progress)
    found = current(cluster, entry.progress) if progress else None
    if progress is None or found is None:
        return _not_started(flow)
    generation, generation_offset = found.generation, found.generation_offset
    if generation.continues >= 0:
        if position is None or (position.progress_id, position.generation) != (
            progress.id,
            generation.generation,
        ):
            return NotReady(
                f"the rows of generation {generation.generation} of flow {flow.name!r} are in two topics, because"
                " another generation served meanwhile; a view cannot be filled from them: rebuild the flow"
            )
        at = generation_at(cluster, entry.progress, position.progress_offset)
        assert at is not None
        generation, generation_offset = at
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
        generation_offset,
        found.last,
        entry.progress,
        progress.id,
        is_last=generation_offset == found.generation_offset,
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
