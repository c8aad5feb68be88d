"""The source of a view's changes: the topic that its store follows, readable from any position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.generations import progress_topic_of
from headrace.client.progress import generation_at, generations
from headrace.follow.changelog import Changelog, FlowProgress
from headrace.follow.origin import flow_that_writes, open_changelog
from headrace.model.declarations import Flow, View
from headrace.model.errors import ValueDoesNotFit
from headrace.model.progress import Generation, Sources
from headrace.model.upcast import Upcaster
from headrace.serve.errors import OrderNotSupported, Unavailable
from headrace.serve.subscribe.log_position import Change, Epoch, LogPosition
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.registry import row_limits
from headrace.stores.row_json import RowJson
from headrace.stores.rows import Row, RowDecoder

__all__ = ["ChangeDecoder", "Source", "find_source", "key_schema"]

_ROWS_PER_READ = 10_000
_REBUILT = "the view's follower rebuilds the view; try again in a moment"


@dataclass(frozen=True, slots=True)
class Source:
    cluster: Cluster
    view: View
    epoch: Epoch
    state: ViewState
    """The store's state when the source was opened."""
    progress: str
    """The flow's progress topic; empty if no flow writes the topic."""
    decoder: ChangeDecoder

    @property
    def is_realtime(self) -> bool:
        return bool(self.progress) and not self.epoch.by_batch

    def open(self, log_position: LogPosition, sources: Sources) -> Changelog:
        by_batch = bool(self.progress) and not self.is_realtime
        return open_changelog(
            self.cluster,
            self.epoch.topic,
            log_position.offsets,
            FlowProgress(self.progress, log_position.progress_offset, self.epoch.generation)
            if self.progress
            else None,
            sources if self.is_realtime else None,
            # Read one batch at a time, because the store can be at the end of any batch.
            1 if by_batch else _ROWS_PER_READ,
        )


def find_source(cluster: Cluster, view: View, flows: Sequence[Flow], state: ViewState) -> Source:
    """Return the source of the store. Raise ``Unavailable`` if the log does not have the topic or the records that the
    store was built from.
    """
    position, schema = state.position, state.schema
    info = cluster.topic(position.topic)
    if info is None or info.id != position.topic_id:
        raise Unavailable(
            f"view {view.name!r} was built from topic {position.topic!r}, which was deleted",
            hint=_REBUILT,
        )
    for number, start in cluster.starts(position.topic).items():
        if position.offsets.get(number, 0) < start:
            raise Unavailable(
                f"view {view.name!r} is at offset {position.offsets.get(number, 0)} of partition {number} of topic"
                f" {position.topic!r}, but the log starts at {start}: the view missed records that were deleted",
                hint=_REBUILT,
            )
    flow = flow_that_writes(view.topic.name, flows) if position.generation else None
    generation = None if flow is None else _generation(cluster, flow, position)
    by_batch = generation is not None and generation.latency != "realtime"
    topic_key = view.topic.key if generation is None else tuple(generation.key)
    if not by_batch and info.partitions > 1 and not set(topic_key) <= set(schema.key):
        raise OrderNotSupported(
            f"the key of view {view.name!r} ({', '.join(schema.key)}) does not include the key of topic {info.name!r}"
            f" ({', '.join(topic_key) or 'none'}): rows of one key come from several partitions, without an order",
            hint="query its rows instead, or use one partition, or include the topic's key in the view's key",
        )
    return Source(
        cluster,
        view,
        Epoch.of(state, info.partitions, by_batch),
        state,
        "" if flow is None else progress_topic_of(cluster, flow, position.generation),
        ChangeDecoder(view, schema, topic_key, view.topic.upcast if generation is None else None),
    )


def _generation(cluster: Cluster, flow: Flow, position: Position) -> Generation:
    topic = progress_topic_of(cluster, flow, position.generation)
    newest = generation_at(cluster, topic, position.progress_offset)
    if newest is not None and newest[0].generation == position.generation:
        return newest[0]
    # Earlier releases wrote all generations to one progress topic.
    for generation in generations(cluster, topic):
        if generation.generation == position.generation and generation.output_id == position.topic_id:
            return generation
    raise Unavailable(
        f"the store has generation {position.generation} of flow {flow.name!r}, which the log does not have",
        hint=_REBUILT,
    )


class ChangeDecoder:
    """Decodes records in the same way as the view's follower. Use it in one thread; ``copy`` returns a decoder for
    another thread.
    """

    def __init__(
        self, view: View, schema: ViewSchema, topic_key: tuple[str, ...], upcast: Upcaster | None
    ) -> None:
        self._arguments = (view, schema, topic_key, upcast)
        self._decoder = RowDecoder(schema, topic_key, upcast)
        self._limits = row_limits(view, schema)
        self._text = RowJson(schema)
        self._key_text = RowJson(key_schema(schema))

    def copy(self) -> ChangeDecoder:
        return ChangeDecoder(*self._arguments)

    def changes(self, messages: Iterable[Message]) -> list[Change]:
        changes: list[Change] = []
        for message in messages:
            value = message.value()
            partition, offset = message.partition() or 0, message.offset() or 0
            try:
                if value is None:
                    key = self._decoder.key(message.key())
                    if self._limits is not None:
                        self._limits.check_key(key)
                    changes.append(Change(self._key_text.value(key), key, None, None, partition, offset))
                else:
                    row = self._decoder.row(value)
                    if self._limits is not None:
                        self._limits.check_row(row)
                    key = self._text.key_of(row)
                    text = self._text.value(row)
                    changes.append(Change(self._key_text.value(key), key, text, row, partition, offset))
            except ValueDoesNotFit:
                continue
        return changes

    def to_json(self, row: Row) -> tuple[bytes, bytes]:
        """Return the key and the row as JSON, as sent in messages."""
        return self._key_text.value(self._text.key_of(row)), self._text.value(row)


def key_schema(schema: ViewSchema) -> ViewSchema:
    """Return the schema of only the key columns."""
    return ViewSchema(tuple(schema.fields[index] for index in schema.key_indexes), schema.key)
