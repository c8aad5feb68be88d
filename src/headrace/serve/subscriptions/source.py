"""What the changes of a view are read from: the topic of the log that its store has followed, from any place on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.progress_log import current, generations
from headrace.model.flow import Flow
from headrace.model.progress import Generation
from headrace.model.source import Sources
from headrace.model.view import View
from headrace.serve.errors import NotServing
from headrace.serve.subscriptions.decoding import Decoding
from headrace.serve.subscriptions.epoch import Epoch
from headrace.serve.subscriptions.errors import ViewUnordered
from headrace.serve.subscriptions.place import Place
from headrace.views.flow_changelog import FlowChangelog
from headrace.views.origin import flow_that_writes
from headrace.views.piece import Changelog
from headrace.views.position import Position, Standing
from headrace.views.realtime_changelog import RealtimeChangelog
from headrace.views.topic_changelog import TopicChangelog

__all__ = ["Source", "find_source"]

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    cluster: Cluster
    view: View
    epoch: Epoch
    standing: Standing
    """Where the store was when it was found."""
    progress: str
    """The flow's progress; nothing where no flow writes the topic."""
    decoding: Decoding

    @property
    def is_realtime(self) -> bool:
        return bool(self.progress) and not self.epoch.by_batch

    def open(self, place: Place, sources: Sources) -> Changelog:
        topic, offsets = self.epoch.topic, place.offsets
        if not self.progress:
            return TopicChangelog(self.cluster, topic, offsets, max_rows=_ROWS_AT_ONCE)
        if self.is_realtime:
            return RealtimeChangelog(
                self.cluster,
                progress=self.progress,
                progress_offset=place.progress_offset,
                generation=self.epoch.generation,
                topic=topic,
                offsets=offsets,
                sources=sources,
                max_rows=_ROWS_AT_ONCE,
            )
        return FlowChangelog(
            self.cluster,
            progress=self.progress,
            progress_offset=place.progress_offset,
            generation=self.epoch.generation,
            topic=topic,
            offsets=offsets,
            # Each batch by itself: a store may be at the end of any of them.
            max_rows=1,
        )


def find_source(cluster: Cluster, view: View, flows: Sequence[Flow], standing: Standing) -> Source:
    """Raises ``NotServing`` if the log does not have any more, or yet, what the store was built from."""
    position, shape = standing.position, standing.shape
    info = cluster.topic(position.topic)
    if info is None or info.id != position.topic_id:
        raise NotServing(
            f"view {view.name!r} is of a topic {position.topic!r} that is gone from the log",
            hint="it is built again by whoever follows it; ask again in a moment",
        )
    for number, start in cluster.starts(position.topic).items():
        if position.offsets.get(number, 0) < start:
            raise NotServing(
                f"view {view.name!r} is at offset {position.offsets.get(number, 0)} of partition {number} of topic"
                f" {position.topic!r}, and the log begins at {start}: what it lacks was deleted",
                hint="it is built again by whoever follows it; ask again in a moment",
            )
    flow = flow_that_writes(view.topic.name, flows) if position.generation else None
    generation = None if flow is None else _generation(cluster, flow, position)
    by_batch = generation is not None and generation.latency != "realtime"
    topic_key = view.topic.key if generation is None else tuple(generation.key)
    if not by_batch and info.partitions > 1 and not set(topic_key) <= set(shape.key):
        raise ViewUnordered(
            f"the key of view {view.name!r} ({', '.join(shape.key)}) does not have the key of topic {info.name!r}"
            f" ({', '.join(topic_key) or 'none'}) in it, so rows of one key come from several partitions, in no order",
            hint="read its rows instead, or give the topic one partition, or the view the topic's key",
        )
    return Source(
        cluster,
        view,
        Epoch.of(standing, info.partitions, by_batch),
        standing,
        "" if flow is None else flow.progress_topic,
        Decoding(view, shape, topic_key),
    )


def _generation(cluster: Cluster, flow: Flow, position: Position) -> Generation:
    newest = current(cluster, flow.progress_topic)
    if newest is not None and newest.generation.generation == position.generation:
        return newest.generation
    # The store has not swapped to the newest yet.
    for one in generations(cluster, flow.progress_topic):
        if one.generation == position.generation and one.output_id == position.topic_id:
            return one
    raise NotServing(
        f"flow {flow.name!r} has no generation {position.generation} in the log, which the store is of",
        hint="it is built again by whoever follows it; ask again in a moment",
    )
