"""What a view has to follow right now: a topic of the log, and of a topic that a flow writes, its newest generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.progress_log import current
from headrace.model.errors import AppError
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation
from headrace.model.schema_json import fields_from_json
from headrace.model.view import View
from headrace.truth import expect_source_of_truth
from headrace.views.errors import ShapeRefused
from headrace.views.position import Position, Shape

__all__ = ["NotYet", "Origin", "find_origin", "flow_that_writes"]


@dataclass(frozen=True, slots=True)
class NotYet:
    """There is nothing to follow, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Origin:
    topic: str
    topic_id: str
    partitions: int
    shape: Shape
    topic_key: tuple[str, ...]
    """Which fields the key of a record holds."""
    generation: Generation | None = None
    generation_offset: int = 0
    last: Batch | None = None
    """The newest batch when this was asked for."""
    progress: str = ""
    progress_id: str = ""

    @property
    def number(self) -> int:
        return self.generation.generation if self.generation else 0

    def start(self, cluster: Cluster, removed_below: dict[int, int], now_ms: int) -> Position:
        """Before the first record that there is; in real time before the first that the generation has written, since
        no batch says which rows are its own.
        """
        offsets = cluster.starts(self.topic)
        if self.generation is not None and self.generation.latency == "realtime":
            begun = self.generation.output_starts
            offsets = {number: max(at, begun.get(str(number), 0)) for number, at in offsets.items()}
        return Position(
            self.topic,
            self.topic_id,
            offsets,
            generation=self.number,
            progress_id=self.progress_id,
            progress_offset=self.generation_offset + 1 if self.generation else 0,
            removed_below=removed_below,
            complete_ms=now_ms,
            stored_ms=now_ms,
        )


def flow_that_writes(topic: str, flows: Sequence[Flow]) -> Flow | None:
    return next((flow for flow in flows if flow.writes.name == topic), None)


def find_origin(cluster: Cluster, view: View, flows: Sequence[Flow]) -> Origin | NotYet:
    flow = flow_that_writes(view.topic.name, flows)
    return _of_topic(cluster, view) if flow is None else _of_flow(cluster, view, flow)


def _of_topic(cluster: Cluster, view: View) -> Origin | NotYet:
    topic = view.topic
    info = cluster.topic(topic.name)
    if info is None:
        return NotYet(f"topic {topic.name!r} does not exist yet")
    if topic.schema is None:
        raise AppError(
            f"view {view.name!r} follows topic {topic.name!r}, which has no schema and no flow that writes it",
            place=view.place,
            hint="give the topic a schema",
        )
    shape = _shape(view, Shape(topic.schema.fields, view.key))
    expect_source_of_truth(topic.name, cluster.configs(topic.name), f"view {view.name!r}")
    return Origin(topic.name, info.id, info.partitions, shape, topic.key)


def _of_flow(cluster: Cluster, view: View, flow: Flow) -> Origin | NotYet:
    progress = cluster.topic(flow.progress_topic)
    found = current(cluster, flow.progress_topic) if progress else None
    if progress is None or found is None:
        return NotYet(f"flow {flow.name!r} has not been started yet")
    record = found.generation
    info = cluster.topic(record.output)
    if info is None or info.id != record.output_id:
        state = (
            "is not there" if info is None else "is not the one that the flow wrote, but another of that name"
        )
        return NotYet(f"topic {record.output!r} of flow {flow.name!r} {state}; rebuild the flow")
    if record.latency == "realtime" and "compact" in (cluster.configs(info.name).get("cleanup.policy") or ""):
        return NotYet(
            f"topic {info.name!r} is compacted, and flow {flow.name!r} writes it in real time: of rows that come again,"
            " compaction keeps the wrong ones; set cleanup.policy=delete and rebuild the flow"
        )
    key = view.key or tuple(record.key)
    shape = _shape(view, Shape(fields_from_json(record.schema), key))
    return Origin(
        info.name,
        info.id,
        info.partitions,
        shape,
        tuple(record.key),
        record,
        found.generation_offset,
        found.last,
        flow.progress_topic,
        progress.id,
    )


def _shape(view: View, shape: Shape) -> Shape:
    absent = [name for name in shape.key if name not in shape.names]
    if absent or not shape.key:
        wrong = f"its key names {absent[0]!r}, which is not a column" if absent else "it has no key"
        raise ShapeRefused(
            f"view {view.name!r}: {wrong}",
            hint=f"the columns are {', '.join(shape.names)}; name some as key=…",
        )
    return shape
