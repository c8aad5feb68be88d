"""One sitting of a follower: it owns a view in an open store, and follows until it is stopped or must begin anew."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import TopicMissing
from headrace.clock import Clock
from headrace.model.errors import ValueDoesNotFit
from headrace.model.flow import Flow
from headrace.model.view import View
from headrace.views.changes import Changes
from headrace.views.dead import DeadLetter, DeadLetters
from headrace.views.errors import PositionMoved
from headrace.views.flow_changelog import FlowChangelog
from headrace.views.goal import FlowGoal, Goal, TopicGoal
from headrace.views.origin import NotYet, Origin, find_origin
from headrace.views.piece import Changelog, LookAgain, Piece
from headrace.views.position import Position, Standing
from headrace.views.realtime_changelog import RealtimeChangelog
from headrace.views.rows import Row, RowDecoder
from headrace.views.staleness import Retention, retention_of, why_build_again
from headrace.views.store import Fence, Owner, Part, Refusals, Store
from headrace.views.topic_changelog import TopicChangelog

__all__ = ["Following"]

_POLL_S = 0.2
_GLANCE_S = 1.0
_LOOK_S = 5.0
_NOT_YET_S = 0.2
_AGAIN_S = 0.05
_TOUCH_MS = 60_000
_COMPACTED = "rows that it had yet to read were compacted away"


@dataclass(slots=True)
class _Work:
    """What is being written, and what it is written from."""

    origin: Origin
    part: Part
    position: Position
    changelog: Changelog
    decoder: RowDecoder
    goal: Goal | None
    """None for the part that serves."""
    fence: Fence
    retention: Retention
    complete_steady: float
    refusals: Refusals | None
    waiting: Piece | None = None
    """Taken, and not applied to what serves before it comes to a state that was."""


class Following:
    """``note`` takes the fields of ``Status`` that have changed."""

    def __init__(
        self,
        view: View,
        flows: Sequence[Flow],
        cluster: Cluster,
        store: Store,
        owner: Owner,
        clock: Clock,
        dead: DeadLetters,
        note: Callable[..., None],
        max_rows: int,
    ) -> None:
        self._max_rows = max(max_rows, store.rows_at_once)
        self._view = view
        self._flows = flows
        self._cluster = cluster
        self._store = store
        self._owner = owner
        self._clock = clock
        self._dead = dead
        self._note = note
        self._glanced = 0.0
        self._looked = 0.0
        self._why_rebuild: str | None = None
        """Why what serves cannot be gone on with, where its position does not tell."""

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            origin = find_origin(self._cluster, self._view, self._flows)
            if isinstance(origin, NotYet):
                self._note(state="waiting", reason=origin.reason)
                stop.wait(_NOT_YET_S)
                continue
            try:
                self._follow(self._settle(origin), stop)
            except (LookAgain, TopicMissing):
                stop.wait(_AGAIN_S)

    # Where to begin

    def _settle(self, origin: Origin) -> _Work:
        """Go on with what serves, or with what was being built, or begin to build."""
        store, now = self._store, self._clock.now_ms()
        retention = retention_of(self._cluster, origin.topic)
        fence = Fence(self._owner, origin.number)
        wish = store.wish()
        serving, building = store.standing(Part.SERVING), store.standing(Part.BUILDING)
        reason = "it was not there" if serving is None else self._why_not(origin, serving, retention, wish)
        reason, self._why_rebuild = reason or self._why_rebuild, None
        if serving is not None and reason is None:
            if building is not None:
                store.drop_building(fence)
            return self._work(origin, Part.SERVING, serving, fence, retention, None)
        if building is None or self._why_not(origin, building, retention, wish) is not None:
            start = origin.start(self._cluster, retention.removed_below or {}, now)
            building = store.begin(origin.shape, start, reason or "", fence)
        self._note(state="rebuilding", reason=building.reason)
        return self._work(origin, Part.BUILDING, building, fence, retention, serving)

    def _why_not(self, origin: Origin, standing: Standing, retention: Retention, wish: int) -> str | None:
        if standing.fault:
            return standing.fault
        if standing.wish < wish:
            return "it was asked for"
        return why_build_again(self._cluster, origin, standing, retention, self._clock.now_ms())

    def _work(
        self,
        origin: Origin,
        part: Part,
        standing: Standing,
        fence: Fence,
        retention: Retention,
        serving: Standing | None,
    ) -> _Work:
        position = standing.position
        goal: Goal | None = None
        if part is Part.BUILDING:
            goal = self._goal(origin, position, serving)
        offsets = {number: position.offsets.get(number, 0) for number in range(origin.partitions)}
        changelog = self._changelog(origin, position, offsets)
        decoder = RowDecoder(origin.shape, origin.topic_key)
        # Not known to be complete before it has been read to its end once.
        away_s = max(0, self._clock.now_ms() - position.complete_ms) / 1_000
        complete = self._clock.steady() - away_s
        self._note(position=position)
        refusals = self._store.refusals(origin.shape)
        return _Work(origin, part, position, changelog, decoder, goal, fence, retention, complete, refusals)

    def _changelog(self, origin: Origin, position: Position, offsets: dict[int, int]) -> Changelog:
        if origin.generation is None:
            return TopicChangelog(self._cluster, origin.topic, offsets, max_rows=self._max_rows)
        if origin.generation.latency == "realtime":
            return RealtimeChangelog(
                self._cluster,
                progress=origin.progress,
                progress_offset=position.progress_offset,
                generation=origin.number,
                topic=origin.topic,
                offsets=offsets,
                sources=position.sources,
                max_rows=self._max_rows,
            )
        return FlowChangelog(
            self._cluster,
            progress=origin.progress,
            progress_offset=position.progress_offset,
            generation=origin.number,
            topic=origin.topic,
            offsets=offsets,
            max_rows=self._max_rows,
        )

    def _goal(self, origin: Origin, position: Position, serving: Standing | None) -> Goal:
        if origin.generation is None:
            return TopicGoal(self._cluster, origin.topic)
        same_flow = serving is not None and serving.position.progress_id == origin.progress_id
        replaced = serving.position if serving is not None and same_flow else None
        return FlowGoal(self._cluster, origin, self._flows, position, replaced, self._clock)

    # Following

    def _follow(self, work: _Work, stop: threading.Event) -> None:
        with contextlib.closing(work.changelog):
            self._follow_on(work, stop)

    def _follow_on(self, work: _Work, stop: threading.Event) -> None:
        while not stop.is_set():
            piece = work.changelog.take(_POLL_S)
            if piece is not None:
                self._look_before(work)
                work.waiting = piece if work.waiting is None else work.waiting.before(piece)
            elif self._is_time_to_glance():
                self._glance(work)
                if self._clock.steady() - self._looked >= _LOOK_S:
                    self._look(work)
                    if work.waiting is None:
                        self._touch(work)
            self._apply_what_waits(work)
            if work.goal is not None and work.goal.reached(work.changelog) and work.changelog.is_exact():
                self._store.swap(work.fence)
                work.part, work.goal = Part.SERVING, None
            lag = work.changelog.lag() + (len(work.waiting.messages) if work.waiting else 0)
            if work.goal is None:
                self._note(state="following", reason="", lag=lag)
            else:
                self._note(state="rebuilding", lag=lag)

    def _apply_what_waits(self, work: _Work) -> None:
        """To what serves only if it is a state that was then; what is being built may be any until it serves. If that
        is too much to hold, the view is built again beside what serves.
        """
        if work.waiting is None:
            return
        if work.part is Part.BUILDING or work.changelog.is_exact():
            piece, work.waiting = work.waiting, None
            self._apply(work, piece)
        elif len(work.waiting.messages) > self._max_rows:
            self._why_rebuild = _COMPACTED
            raise LookAgain(_COMPACTED)

    def _apply(self, work: _Work, piece: Piece) -> None:
        changes = Changes(work.origin.shape)
        letters: list[DeadLetter] = []
        row, key, refusals = work.decoder.row, work.decoder.key, work.refusals
        rows: list[Row] = []
        for message in piece.messages:
            value = message.value()
            try:
                if value is None:
                    gone = key(message.key())
                    if refusals is not None:
                        refusals.key(gone)
                    changes.put_all(rows)
                    rows.clear()
                    changes.remove(gone)
                else:
                    made = row(value)
                    if refusals is not None:
                        refusals.row(made)
                    rows.append(made)
            except ValueDoesNotFit as error:
                letters.append(DeadLetter(message, error))
        changes.put_all(rows)
        if letters:
            self._dead.write(letters)
        now = self._clock.now_ms()
        batch = piece.batch.batch if piece.batch is not None else work.position.batch
        after = msgspec.structs.replace(
            work.position,
            offsets=piece.offsets,
            batch=batch,
            progress_offset=piece.progress_offset,
            complete_ms=max(work.position.complete_ms, self._complete_ms(work)),
            stored_ms=now,
            dead=work.position.dead + len(letters),
            sources=work.position.sources if piece.sources is None else piece.sources,
        )
        self._store.apply(work.part, changes, work.position, after, work.fence)
        work.position = after
        if work.goal is not None:
            work.goal.note(piece.batch)
        told = {"dead": len(letters), "foreign": piece.foreign, "repeats": piece.repeats}
        self._note(position=after, applied=len(piece.messages), **told)

    def _complete_ms(self, work: _Work) -> int:
        return int(self._clock.now_ms() - (self._clock.steady() - work.complete_steady) * 1_000)

    def _touch(self, work: _Work) -> None:
        """Nothing came; note that the log was read to its end all the same, so that time away is told from quiet."""
        complete = self._complete_ms(work)
        if complete - work.position.complete_ms >= _TOUCH_MS:
            after = msgspec.structs.replace(
                work.position, complete_ms=complete, stored_ms=self._clock.now_ms()
            )
            self._store.apply(work.part, Changes(work.origin.shape), work.position, after, work.fence)
            work.position = after

    # Looking around

    def _is_time_to_glance(self) -> bool:
        return self._clock.steady() - self._glanced >= _GLANCE_S

    def _look_before(self, work: _Work) -> None:
        """What was read may be of another topic of the same name, or lack deletions: it is asked before it counts."""
        if self._is_time_to_glance():
            self._glance(work)
        away_s = self._clock.steady() - work.complete_steady
        if work.retention.compacted and away_s * 2_000 > work.retention.kept_ms:
            self._look(work)

    def _glance(self, work: _Work) -> None:
        """Raises ``LookAgain`` if what is followed is not what it was, or not wanted any more."""
        info = self._cluster.topic(work.origin.topic)
        if info is None or (info.id, info.partitions) != (work.origin.topic_id, work.origin.partitions):
            raise LookAgain(f"topic {work.origin.topic!r} is another")
        standing = self._store.standing(work.part)
        if standing is None:
            raise LookAgain("what was written is gone from the store")
        if standing.fault:
            raise LookAgain(standing.fault)
        if standing.position != work.position:
            raise PositionMoved(
                f"view {self._view.name!r} is not where its follower left it",
                detail=f"left at {work.position}, found at {standing.position}",
                hint="was the store restored from a backup? It goes on from where the store is",
            )
        if self._store.wish() > standing.wish:
            raise LookAgain("a rebuild was asked for")
        self._glanced = self._clock.steady()

    def _look(self, work: _Work) -> None:
        """Raises ``LookAgain`` if a deletion may have been missed; else notes whether all there is has been read."""
        now = self._clock.steady()
        work.retention = retention_of(self._cluster, work.origin.topic)
        starts = self._cluster.starts(work.origin.topic) if work.retention.compacted else {}
        known = msgspec.structs.replace(work.position, complete_ms=self._complete_ms(work))
        if work.retention.why_missed(known, starts, self._clock.now_ms()) is not None:
            raise LookAgain("deletions may have been missed")
        passed = work.changelog.passed()
        ends = self._cluster.ends(work.origin.topic)
        if all(passed.get(number, 0) >= end for number, end in ends.items()):
            work.complete_steady = now
        self._looked = self._clock.steady()
