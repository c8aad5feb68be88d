"""One session of a follower: it owns a view in an open store, and follows the log until it stops or the store fails.

A view has a *serving* part, which answers queries. The session continues the serving part, or builds a new part next to
it (``headrace.follow.rebuild``). Periodically, and before it applies records after a pause, the session checks that
the topic was not recreated, because a Kafka client continues silently in a recreated topic. After any such change, the
session calls ``find_origin`` again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.errors import MissingTopic
from headrace.clock import Clock
from headrace.follow.changelog import ChangeBatch, Changelog, FlowProgress, SourceChanged
from headrace.follow.dead_letters import DeadLetter, DeadLetters
from headrace.follow.origin import NotReady, Origin, find_origin, open_changelog
from headrace.follow.rebuild import FlowGoal, Goal, Retention, TopicGoal, rebuild_reason, retention_of
from headrace.model.declarations import Flow, View
from headrace.model.errors import ValueDoesNotFit
from headrace.model.progress import Sources
from headrace.model.rejection import BuildRecord, Reason, Rejection
from headrace.stores.position import Position, ViewState
from headrace.stores.rows import Row, RowDecoder
from headrace.stores.writer import Changes, Fence, Owner, Part, RowLimits, StoreWriter, check_position

__all__ = ["FollowContext", "FollowSession", "FollowState", "FollowStatus"]

_POLL_S = 0.2
_CHECK_SOURCE_S = 1.0
_CHECK_DELETIONS_S = 5.0
_NOT_READY_S = 0.2
_RETRY_S = 0.05
_TOUCH_MS = 60_000
_COMPACTED = "compaction removed rows before the follower read them"

FollowState = Literal["starting", "following", "rebuilding", "waiting", "stopped"]


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """The current state of a follower, for display. Immutable, so any thread may read it."""

    view: str
    state: FollowState = "starting"
    reason: str = ""
    """Why the follower waits or rebuilds."""
    position: Position | None = None
    """The position of the part that the follower writes."""
    lag: int = 0
    """The number of records not yet applied, as far as known."""
    applied: int = 0
    """The number of records applied since the follower started, including deletions."""
    dead: int = 0
    """The number of dead letters since the follower started."""
    foreign: int = 0
    """The number of records that the flow did not write, since the follower started."""
    repeats: int = 0
    """The number of repeated rows of a real-time flow that were skipped since the follower started."""
    rebuilds: int = 0


@dataclass(frozen=True, slots=True)
class FollowContext:
    """The objects that all sessions of a follower share. ``report`` accepts the changed fields of ``FollowStatus``."""

    view: View
    flows: Sequence[Flow]
    cluster: Cluster
    clock: Clock
    dead_letters: DeadLetters
    report: Callable[..., None]
    max_rows: int


@dataclass(slots=True)
class _Work:
    """The part of the view that the session writes, with its source and its position."""

    origin: Origin
    part: Part
    position: Position
    changelog: Changelog
    decoder: RowDecoder
    goal: Goal | None
    """None for the serving part."""
    fence: Fence
    retention: Retention
    reached_end_at: float
    """When the follower last reached the end of the topic (steady time)."""
    limits: RowLimits | None
    pending: ChangeBatch | None = None
    """Polled records that are not applied yet. The serving part applies them only when its rows then equal a state that
    the topic had at some time (an exact state).
    """


class FollowSession:
    def __init__(self, context: FollowContext, store: StoreWriter, owner: Owner) -> None:
        self._view = context.view
        self._flows = context.flows
        self._cluster = context.cluster
        self._clock = context.clock
        self._dead = context.dead_letters
        self._report = context.report
        self._max_rows = max(context.max_rows, store.rows_at_once)
        self._store = store
        self._owner = owner
        self._source_checked = 0.0
        self._deletions_checked = 0.0
        self._has_letters = True
        """Whether the view may have dead letters of earlier parts than the building part."""
        self._rebuild_reason: str | None = None
        """The reason for the next rebuild, if the position of the serving part does not show it; else None."""

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            origin = find_origin(self._cluster, self._view, self._flows)
            if isinstance(origin, NotReady):
                self._report(state="waiting", reason=origin.reason)
                stop.wait(_NOT_READY_S)
                continue
            try:
                work = self._choose_part(origin)
                with contextlib.closing(work.changelog):
                    self._follow(work, stop)
            except (SourceChanged, MissingTopic):
                stop.wait(_RETRY_S)

    # Choosing the part

    def _choose_part(self, origin: Origin) -> _Work:
        """Continue the serving part if possible. Otherwise continue the building part, or begin a new building part."""
        store, now = self._store, self._clock.now_ms()
        retention = retention_of(self._cluster, origin.topic)
        fence = Fence(self._owner, origin.generation_number)
        requests = store.rebuild_requests()
        serving, building = store.state(Part.SERVING), store.state(Part.BUILDING)
        reason = "new" if serving is None else self._reason_to_rebuild(origin, serving, retention, requests)
        reason, self._rebuild_reason = reason or self._rebuild_reason, None
        if serving is not None and reason is None:
            if building is not None:
                store.drop_building(fence)
            return self._work(origin, Part.SERVING, serving, fence, retention, None)
        if building is None or self._reason_to_rebuild(origin, building, retention, requests) is not None:
            start = origin.start(self._cluster, retention.removed_below or {}, now)
            # Before the store begins: if the follower stops in between, it repeats both.
            record = BuildRecord(False, start.topic, start.topic_id, start.offsets)
            self._has_letters = self._dead.note_build(record)
            building = store.begin(origin.schema, start, reason or "", fence)
        self._report(state="rebuilding", reason=building.reason)
        return self._work(origin, Part.BUILDING, building, fence, retention, serving)

    def _reason_to_rebuild(
        self, origin: Origin, state: ViewState, retention: Retention, requests: int
    ) -> str | None:
        """Return the reason why the part cannot be continued; None if it can."""
        if state.fault:
            return state.fault
        if state.rebuild_requests < requests:
            return "requested"
        return rebuild_reason(self._cluster, origin, state, retention, self._clock.now_ms())

    def _work(
        self,
        origin: Origin,
        part: Part,
        state: ViewState,
        fence: Fence,
        retention: Retention,
        serving: ViewState | None,
    ) -> _Work:
        position = state.position
        goal = self._goal(origin, position, serving) if part is Part.BUILDING else None
        offsets = {number: position.offsets.get(number, 0) for number in range(origin.partitions)}
        progress: FlowProgress | None = None
        sources: Sources | None = None
        if origin.generation is not None:
            progress = FlowProgress(origin.progress, position.progress_offset, origin.generation_number)
            sources = position.sources if origin.generation.latency == "realtime" else None
        changelog = open_changelog(self._cluster, origin.topic, offsets, progress, sources, self._max_rows)
        decoder = RowDecoder(origin.schema, origin.topic_key)
        # Use the stored time until this session has reached the end of the topic once.
        away_s = max(0, self._clock.now_ms() - position.complete_ms) / 1_000
        complete = self._clock.steady() - away_s
        self._report(position=position)
        limits = self._store.limits(origin.schema)
        return _Work(origin, part, position, changelog, decoder, goal, fence, retention, complete, limits)

    def _goal(self, origin: Origin, position: Position, serving: ViewState | None) -> Goal:
        if origin.generation is None:
            return TopicGoal(self._cluster, origin.topic)
        is_same_flow = serving is not None and serving.position.progress_id == origin.progress_id
        replaced = serving.position if serving is not None and is_same_flow else None
        return FlowGoal(self._cluster, origin, self._flows, position, replaced, self._clock)

    # Following

    def _follow(self, work: _Work, stop: threading.Event) -> None:
        while not stop.is_set():
            batch = work.changelog.poll(_POLL_S)
            if batch is not None:
                self._check_before_apply(work)
                work.pending = batch if work.pending is None else work.pending.merged(batch)
            elif self._is_source_check_due():
                self._check_source(work)
                if self._clock.steady() - self._deletions_checked >= _CHECK_DELETIONS_S:
                    self._check_deletions(work)
                    if work.pending is None:
                        self._touch(work)
            self._apply_pending(work)
            if work.goal is not None and work.goal.reached(work.changelog) and work.changelog.is_exact():
                if self._has_letters:
                    record = BuildRecord(True, work.position.topic, work.position.topic_id, {})
                    self._dead.note_build(record)
                self._store.swap(work.fence)
                work.part, work.goal = Part.SERVING, None
            lag = work.changelog.lag() + (len(work.pending.messages) if work.pending else 0)
            if work.goal is None:
                self._report(state="following", reason="", lag=lag)
            else:
                self._report(state="rebuilding", lag=lag)

    def _apply_pending(self, work: _Work) -> None:
        """Apply the pending records. The serving part accepts them only if they form an exact state. The building part
        accepts any state until it serves. If too many records are pending, the view is rebuilt.
        """
        if work.pending is None:
            return
        if work.part is Part.BUILDING or work.changelog.is_exact():
            batch, work.pending = work.pending, None
            self._apply(work, batch)
        elif len(work.pending.messages) > self._max_rows:
            self._rebuild_reason = _COMPACTED
            raise SourceChanged(_COMPACTED)

    def _apply(self, work: _Work, batch: ChangeBatch) -> None:
        changes = Changes(work.origin.schema)
        letters: list[DeadLetter] = []
        decode_row, decode_key, limits = work.decoder.row, work.decoder.key, work.limits
        schema_reason = Reason.SCHEMA
        rows: list[Row] = []
        for message in batch.messages:
            value = message.value()
            reason = schema_reason
            try:
                if value is None:
                    reason = Reason.KEY
                    key = decode_key(message.key())
                    if limits is not None:
                        reason = Reason.STORE
                        limits.check_key(key)
                    changes.put_all(rows)
                    rows.clear()
                    changes.remove(key)
                else:
                    row = decode_row(value)
                    if limits is not None:
                        reason = Reason.STORE
                        limits.check_row(row)
                    rows.append(row)
            except ValueDoesNotFit as error:
                letters.append(DeadLetter(message, _rejection(work, message, reason, error)))
        changes.put_all(rows)
        if letters:
            self._dead.write(letters)
        after = msgspec.structs.replace(
            work.position,
            offsets=batch.offsets,
            batch=batch.batch.batch if batch.batch is not None else work.position.batch,
            progress_offset=batch.progress_offset,
            complete_ms=max(work.position.complete_ms, self._complete_ms(work)),
            stored_ms=self._clock.now_ms(),
            dead=work.position.dead + len(letters),
            sources=work.position.sources if batch.sources is None else batch.sources,
        )
        self._store.apply(work.part, changes, work.position, after, work.fence)
        work.position = after
        if work.goal is not None:
            work.goal.add(batch.batch)
        self._report(
            position=after,
            applied=len(batch.messages),
            dead=len(letters),
            foreign=batch.foreign,
            repeats=batch.repeats,
        )

    def _complete_ms(self, work: _Work) -> int:
        return int(self._clock.now_ms() - (self._clock.steady() - work.reached_end_at) * 1_000)

    def _touch(self, work: _Work) -> None:
        """Store that the follower reached the end of the topic, even if no records arrived. Otherwise a quiet topic
        would be indistinguishable from a stopped follower.
        """
        complete = self._complete_ms(work)
        if complete - work.position.complete_ms >= _TOUCH_MS:
            after = msgspec.structs.replace(
                work.position, complete_ms=complete, stored_ms=self._clock.now_ms()
            )
            self._store.apply(work.part, Changes(work.origin.schema), work.position, after, work.fence)
            work.position = after

    # Checks

    def _is_source_check_due(self) -> bool:
        return self._clock.steady() - self._source_checked >= _CHECK_SOURCE_S

    def _check_before_apply(self, work: _Work) -> None:
        """Check for a recreated topic and for missed tombstones before the polled records are applied."""
        if self._is_source_check_due():
            self._check_source(work)
        away_s = self._clock.steady() - work.reached_end_at
        if work.retention.compacted and away_s * 2_000 > work.retention.kept_ms:
            self._check_deletions(work)

    def _check_source(self, work: _Work) -> None:
        """Raise ``SourceChanged`` if the topic or the store changed, or if a rebuild was requested."""
        info = self._cluster.topic(work.origin.topic)
        if info is None or (info.id, info.partitions) != (work.origin.topic_id, work.origin.partitions):
            raise SourceChanged(f"topic {work.origin.topic!r} was deleted, recreated or repartitioned")
        state = self._store.state(work.part)
        if state is None:
            raise SourceChanged("the part that the session writes is missing in the store")
        if state.fault:
            raise SourceChanged(state.fault)
        check_position(self._view.name, "its store", work.position, state.position)
        if self._store.rebuild_requests() > state.rebuild_requests:
            raise SourceChanged("a rebuild was requested")
        self._source_checked = self._clock.steady()

    def _check_deletions(self, work: _Work) -> None:
        """Raise ``SourceChanged`` if the follower may have missed a tombstone. Otherwise, if it has reached the end of
        the topic, record the time.
        """
        now = self._clock.steady()
        work.retention = retention_of(self._cluster, work.origin.topic)
        starts = self._cluster.starts(work.origin.topic) if work.retention.compacted else {}
        read_position = msgspec.structs.replace(work.position, complete_ms=self._complete_ms(work))
        if work.retention.missed_tombstone_reason(read_position, starts, self._clock.now_ms()) is not None:
            raise SourceChanged("the follower may have missed tombstones")
        passed = work.changelog.passed()
        ends = self._cluster.ends(work.origin.topic)
        if all(passed.get(number, 0) >= end for number, end in ends.items()):
            work.reached_end_at = now
        self._deletions_checked = self._clock.steady()


def _rejection(work: _Work, message: Message, reason: Reason, error: ValueDoesNotFit) -> Rejection:
    return Rejection(
        reason,
        error.message,
        work.origin.generation_number,
        message.topic() or "",
        work.origin.topic_id,
        message.partition() or 0,
        message.offset() or 0,
    )
