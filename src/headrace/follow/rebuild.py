"""Decides when a view must be rebuilt from the first offset, and when the rebuilt part may replace the serving part.

A view has a *serving* part, which answers queries. During a rebuild it also has a *building* part.

**Rebuild.** A part cannot be continued in these cases:
- It belongs to another topic (or an earlier topic of the same name), another generation or another schema.
- The log deleted the next records, or ends before them.
- The topic was restored from a backup that ends before the view's position.
- The view may have missed a tombstone (``headrace.client.tombstones``).

**Switch.** The building part may serve when it contains at least what the serving part contains. For a topic without a
flow, it must reach the end that the topic had when the rebuild began. A new generation of a flow derives everything
from its inputs again, so the end of its output topic is not a usable goal. Instead, the new generation must have
consumed at least the input records that the serving generation had consumed. If an input was itself rebuilt, its
offsets cannot be compared. Then the new generation must reach the offset at which that input had caught up. The same
rule, applied to the flow that writes the input, defines this offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.client.cluster import Cluster
from headrace.client.generations import generations_in_log, progress_of, progress_topic_of
from headrace.client.progress import batches
from headrace.client.tombstones import Tombstones
from headrace.clock import Clock
from headrace.follow.changelog import Changelog
from headrace.follow.origin import Origin, flow_that_writes
from headrace.model.declarations import Flow
from headrace.model.progress import Batch, Generation, source_ends
from headrace.stores.position import NO_BATCH, Position, ViewState

__all__ = ["FlowGoal", "Goal", "Retention", "TopicGoal", "rebuild_reason", "retention_of"]

_RESTORED_CONFIG = "headrace.restored"
_READ_EVERY_S = 1.0
Consumed = dict[str, dict[int, int]]
"""The offset after the last consumed record, by input topic (its name in the log) and partition."""


@dataclass(frozen=True, slots=True)
class Retention(Tombstones):
    restored: tuple[tuple[int, int, int], ...] = ()
    """Restores from a backup: time in ms, partition, and its end offset after the restore."""

    def restore_reason(self, position: Position) -> str | None:
        """Return the reason if a restore may have replaced records that the view has read; else None."""
        for at_ms, number, end in self.restored:
            if position.stored_ms <= at_ms and position.offsets.get(number, 0) > end:
                return (
                    f"partition {number} of {position.topic!r} was restored from a backup that ends at offset {end},"
                    f" but the view had read up to offset {position.offsets[number]}"
                )
        return None


def retention_of(cluster: Cluster, topic: str) -> Retention:
    configs = cluster.configs(topic)
    tombstones = Tombstones.of(configs)
    restored = tuple(
        _parse_restore(text) for text in (configs.get(_RESTORED_CONFIG) or "").split(",") if text
    )
    return Retention(tombstones.compacted, tombstones.kept_ms, tombstones.removed_below, restored)


def _parse_restore(text: str) -> tuple[int, int, int]:
    at_ms, number, end = map(int, text.split(":"))
    return at_ms, number, end


def rebuild_reason(
    cluster: Cluster, origin: Origin, state: ViewState, retention: Retention, now_ms: int
) -> str | None:
    """Return the reason why the part must be rebuilt; None if it can be continued."""
    position = state.position
    if position.generation != origin.generation_number:
        return f"the flow switched to generation {origin.generation_number}"
    if position.topic_id != origin.topic_id or position.progress_id != origin.progress_id:
        return f"topic {origin.topic!r} was recreated"
    if state.schema.to_json() != origin.schema.to_json():
        return "the schema or the key changed"
    starts = cluster.starts(origin.topic)
    ends = cluster.ends(origin.topic, committed=False)
    for number, start in starts.items():
        offset, end = position.offsets.get(number, 0), ends.get(number, 0)
        if offset > end:
            return f"partition {number} of {origin.topic!r} ends at offset {end}, but the view is at offset {offset}"
        if offset < start:
            return (
                f"records {offset} to {start - 1} in partition {number} of {origin.topic!r} were deleted before the"
                " follower read them"
            )
    if origin.progress and position.progress_offset > cluster.ends(origin.progress, committed=False)[0]:
        return f"topic {origin.progress!r} ends before offset {position.progress_offset}, the position of the view"
    return retention.restore_reason(position) or retention.missed_tombstone_reason(position, starts, now_ms)


class Goal(Protocol):
    """The condition for the building part to start serving."""

    def add(self, batch: Batch | None) -> None:
        """Record that the store has applied the batch."""

    def reached(self, changelog: Changelog) -> bool: ...


class TopicGoal:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._ends = cluster.ends(topic)

    def add(self, batch: Batch | None) -> None:
        """Do nothing: the offsets of the changelog are enough for ``reached``."""

    def reached(self, changelog: Changelog) -> bool:
        passed = changelog.passed()
        return all(passed.get(number, 0) >= end for number, end in self._ends.items())


class FlowGoal:
    """``position`` is the position of the building part. ``serving`` is the position of the serving part; None if the
    view has no serving part of this flow.
    """

    def __init__(
        self,
        cluster: Cluster,
        origin: Origin,
        flows: Sequence[Flow],
        position: Position,
        serving: Position | None,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._read = -_READ_EVERY_S
        self._cluster = cluster
        self._flows = flows
        self._origin = origin
        # A batch flow switches to a generation only when that has read all that the old one had read. Earlier releases
        # did not; they wrote all generations to one progress topic.
        is_ungated = origin.is_realtime or (serving is not None and serving.progress_id == origin.progress_id)
        self._serving = (
            serving
            if is_ungated and serving is not None and serving.generation < origin.generation_number
            else None
        )
        self._last_batch = origin.last.batch if origin.last else NO_BATCH
        self._batch = position.batch
        self._consumed: Consumed = {}
        self._needed: Consumed | None = None
        if self._serving is not None:
            for batch in batches(cluster, origin.progress, origin.generation_number):
                if batch.batch <= position.batch:
                    _consume(self._consumed, batch)

    def add(self, batch: Batch | None) -> None:
        if batch is not None:
            self._batch = batch.batch
            if self._serving is not None:
                _consume(self._consumed, batch)

    def reached(self, changelog: Changelog) -> bool:
        if self._batch < self._last_batch:
            return False
        if self._serving is None:
            return True
        if self._needed is None and self._clock.steady() - self._read >= _READ_EVERY_S:
            self._read = self._clock.steady()
            assert self._origin.generation is not None
            new = self._origin.generation
            old = _generation(self._cluster, self._flows, new, self._serving.generation)
            needed = _needed(self._cluster, self._flows, new, old)
            if needed is not None and old is not None:
                _add_realtime(needed, new, old, self._serving)
            self._needed = needed
        return self._needed is not None and _covers(self._consumed, self._needed)


def _generation(cluster: Cluster, flows: Sequence[Flow], new: Generation, number: int) -> Generation | None:
    flow = _flow_of(flows, new)
    progress = progress_of(cluster, flow, number) if flow is not None else None
    return None if progress is None else progress.generation


def _flow_of(flows: Sequence[Flow], generation: Generation) -> Flow | None:
    return next((flow for flow in flows if flow.name == generation.flow), None)


def _needed(
    cluster: Cluster, flows: Sequence[Flow], new: Generation, old: Generation | None
) -> Consumed | None:
    """Return what ``new`` must consume to contain at least what ``old`` contains; None if that is not known yet."""
    flow = None if old is None else _flow_of(flows, old)
    if old is None or flow is None:
        return {}
    before: Consumed = {}
    for batch in batches(cluster, progress_topic_of(cluster, flow, old.generation), old.generation):
        _consume(before, batch)
    needed: Consumed = {}
    old_inputs = {source.topic: source for source in old.inputs}
    for source in new.inputs:
        old_source = old_inputs.get(source.topic)
        if old_source is None or source.kind == "table":
            continue
        if old_source.topic_id == source.topic_id:
            needed[source.log] = dict(before.get(source.log, {}))
            continue
        caught_up = _caught_up_at(cluster, flows, source.topic)
        if caught_up is None:
            return None
        needed[source.log] = caught_up
    return needed


def _add_realtime(needed: Consumed, new: Generation, old: Generation, serving: Position) -> None:
    """Add the sources of the rows that a real-time flow has written. Such rows are visible before the progress record
    of their input.
    """
    log_names = {source.topic_id: source.log for source in new.inputs if source.kind == "events"}
    for source in old.inputs:
        if source.topic_id in log_names:
            ends = needed.setdefault(log_names[source.topic_id], {})
            for number, end in source_ends(serving.sources).items():
                ends[number] = max(end, ends.get(number, 0))


def _caught_up_at(cluster: Cluster, flows: Sequence[Flow], topic: str) -> dict[int, int] | None:
    """Return the offsets in ``topic`` at which its flow's newest generation caught up with the previous generation;
    None if it has not caught up yet.
    """
    flow = flow_that_writes(topic, flows)
    if flow is None:
        return {}
    all_generations = generations_in_log(cluster, flow)
    if not all_generations:
        return None
    newest = all_generations[-1]
    earlier_generations = [
        generation for generation in all_generations if generation.generation < newest.generation
    ]
    needed = _needed(cluster, flows, newest, earlier_generations[-1] if earlier_generations else None)
    if needed is None:
        return None
    consumed: Consumed = {}
    written: dict[int, int] = {}
    if _covers(consumed, needed):
        return written
    progress_topic = progress_topic_of(cluster, flow, newest.generation)
    for batch in batches(cluster, progress_topic, newest.generation):
        _consume(consumed, batch)
        for number, (_, end) in batch.outputs.get(newest.output, {}).items():
            written[int(number)] = end
        if _covers(consumed, needed):
            return written
    return None


def _consume(consumed: Consumed, batch: Batch) -> None:
    for topic, ranges in batch.inputs.items():
        ends = consumed.setdefault(topic, {})
        for number, (_, end) in ranges.items():
            ends[int(number)] = max(end, ends.get(int(number), 0))


def _covers(consumed: Consumed, needed: Consumed) -> bool:
    return all(
        consumed.get(topic, {}).get(number, 0) >= end
        for topic, ends in needed.items()
        for number, end in ends.items()
    )
