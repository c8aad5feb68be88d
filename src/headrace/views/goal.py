"""When a part that is being built has come far enough to serve: when it shows no less than what it replaces.

For a topic that is what was its end when the build began. A flow's new generation derives everything from its inputs
again, and its own end says nothing at first: it must have consumed what the generation that serves had consumed. Where
an input is itself of a new generation, its offsets do not compare; then it counts from where that one had come far
enough, by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.client.cluster import Cluster
from headrace.client.progress_log import batches, generations
from headrace.clock import Clock
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation
from headrace.model.source import reaches
from headrace.views.origin import Origin, flow_that_writes
from headrace.views.piece import Changelog
from headrace.views.position import NO_BATCH, Position

__all__ = ["FlowGoal", "Goal", "TopicGoal"]

_ASK_S = 1.0
Consumed = dict[str, dict[int, int]]
"""Per input topic, as the log names it, and partition: how far."""


class Goal(Protocol):
    def note(self, batch: Batch | None) -> None:
        """The batch is in the store."""

    def reached(self, changelog: Changelog) -> bool: ...


class TopicGoal:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._ends = cluster.ends(topic)

    def note(self, batch: Batch | None) -> None:
        """Where the changelog is says all."""

    def reached(self, changelog: Changelog) -> bool:
        passed = changelog.passed()
        return all(passed.get(number, 0) >= end for number, end in self._ends.items())


class FlowGoal:
    """``serving`` is where what is to be replaced is; None if nothing serves, or nothing of this flow."""

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
        self._asked = -_ASK_S
        self._cluster = cluster
        self._flows = flows
        self._origin = origin
        self._serving = serving if serving is not None and serving.generation < origin.number else None
        self._last_batch = origin.last.batch if origin.last else NO_BATCH
        self._batch = position.batch
        self._consumed: Consumed = {}
        self._needed: Consumed | None = None
        if self._serving is not None:
            for batch in batches(cluster, origin.progress, origin.number):
                if batch.batch <= position.batch:
                    _consume(self._consumed, batch)

    def note(self, batch: Batch | None) -> None:
        if batch is not None:
            self._batch = batch.batch
            if self._serving is not None:
                _consume(self._consumed, batch)

    def reached(self, changelog: Changelog) -> bool:
        if self._batch < self._last_batch:
            return False
        if self._serving is None:
            return True
        if self._needed is None and self._clock.steady() - self._asked >= _ASK_S:
            self._asked = self._clock.steady()
            assert self._origin.generation is not None
            new = self._origin.generation
            old = _generation(self._cluster, self._origin.progress, self._serving.generation)
            needed = _needed(self._cluster, self._flows, new, old)
            if needed is not None and old is not None:
                _add_seen(needed, new, old, self._serving)
            self._needed = needed
        return self._needed is not None and _covers(self._consumed, self._needed)


def _generation(cluster: Cluster, progress: str, number: int) -> Generation | None:
    found = [one for one in generations(cluster, progress) if one.generation == number]
    return found[-1] if found else None


def _needed(
    cluster: Cluster, flows: Sequence[Flow], new: Generation, old: Generation | None
) -> Consumed | None:
    """What ``new`` must have consumed to show no less than ``old`` did; None if that cannot be said yet."""
    if old is None:
        return {}
    before: Consumed = {}
    for batch in batches(cluster, f"{old.flow}.progress", old.generation):
        _consume(before, batch)
    needed: Consumed = {}
    old_inputs = {one.topic: one for one in old.inputs}
    for one in new.inputs:
        was = old_inputs.get(one.topic)
        if was is None or one.kind == "table":
            continue
        if was.topic_id == one.topic_id:
            needed[one.log] = dict(before.get(one.log, {}))
            continue
        caught_up = _caught_up_at(cluster, flows, one.topic)
        if caught_up is None:
            return None
        needed[one.log] = caught_up
    return needed


def _add_seen(needed: Consumed, new: Generation, old: Generation, serving: Position) -> None:
    """What was written in real time is seen before the flow notes that its input is done."""
    known = {one.topic_id: one.log for one in new.inputs if one.kind == "events"}
    for one in old.inputs:
        if one.topic_id in known:
            ends = needed.setdefault(known[one.topic_id], {})
            for number, end in reaches(serving.sources).items():
                ends[number] = max(end, ends.get(number, 0))


def _caught_up_at(cluster: Cluster, flows: Sequence[Flow], topic: str) -> dict[int, int] | None:
    """How far into the newest output of the flow that writes ``topic`` it shows no less than its last generation."""
    flow = flow_that_writes(topic, flows)
    if flow is None:
        return {}
    known = list(generations(cluster, flow.progress_topic))
    if not known:
        return None
    newest, before = known[-1], [one for one in known if one.generation < known[-1].generation]
    needed = _needed(cluster, flows, newest, before[-1] if before else None)
    consumed: Consumed = {}
    written: dict[int, int] = {}
    if needed is not None and _covers(consumed, needed):
        return written
    for batch in batches(cluster, flow.progress_topic, newest.generation) if needed is not None else ():
        _consume(consumed, batch)
        for number, (_, end) in batch.outputs.get(newest.output, {}).items():
            written[int(number)] = end
        if needed is not None and _covers(consumed, needed):
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
