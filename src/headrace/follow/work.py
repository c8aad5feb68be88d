"""One part of a view that a follower writes, with its source and its position.

``step`` polls the source and applies the records to the part. It raises ``SourceChanged`` if the source or the store
changed, so that the session must choose its parts again. Periodically, and before it applies records after a pause, it
checks that the topic was not recreated, because a Kafka client continues silently in a recreated topic.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from confluent_kafka import Message

from headrace.follow.changelog import ChangeBatch, Changelog, SourceChanged
from headrace.follow.context import FollowContext
from headrace.follow.dead_letters import DeadLetter
from headrace.follow.origin import Origin
from headrace.follow.rebuild import Goal, Retention, retention_of
from headrace.model.errors import ValueDoesNotFit
from headrace.model.rejection import BuildRecord, Reason, Rejection
from headrace.stores.position import Position
from headrace.stores.rows import Row, RowDecoder
from headrace.stores.writer import Changes, Fence, Part, RowLimits, StoreWriter, check_position

__all__ = ["PartWork", "Target"]

_CHECK_SOURCE_S = 1.0
_CHECK_DELETIONS_S = 5.0
_TOUCH_MS = 60_000
_COMPACTED = "compaction removed rows before the follower read them"


@dataclass(slots=True)
class Target:
    """The part, and what it follows."""

    origin: Origin
    part: Part
    position: Position
    changelog: Changelog
    decoder: RowDecoder
    goal: Goal | None
    """The condition for a building part to serve. None for other parts, and while the flow does not serve the
    generation of the part.
    """
    fence: Fence
    retention: Retention
    reached_end_at: float
    """When the follower last reached the end of the topic (steady time)."""
    limits: RowLimits | None
    has_letters: bool = True
    """Whether the view may have dead letters of earlier parts than this building part."""
    keeps_old: bool = False
    """Whether the old serving part is kept when this building part serves."""
    pending: ChangeBatch | None = None
    """Polled records that are not applied yet. The serving part applies them only when its rows then equal a state that
    the topic had at some time (an exact state).
    """


class CompactedRows(SourceChanged):
    """The part must be rebuilt, because it cannot reach an exact state."""


class PartWork:
    """``is_reported`` says whether the follower's status shows this part."""

    def __init__(
        self, context: FollowContext, store: StoreWriter, target: Target, *, is_reported: bool
    ) -> None:
        self.target = target
        self._view = context.view
        self._cluster = context.cluster
        self._clock = context.clock
        self._dead = context.dead_letters
        self._report = context.report
        self._is_reported = is_reported
        self._max_rows = max(context.max_rows, store.rows_at_once)
        self._store = store
        self._source_checked = 0.0
        self._deletions_checked = 0.0

    def close(self) -> None:
        self.target.changelog.close()

    def step(self, poll_s: float) -> bool:
        """Poll and apply once. Returns whether records arrived."""
        work = self.target
        batch = work.changelog.poll(poll_s)
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
            if work.has_letters:
                position = work.position
                self._dead.note_build(BuildRecord(True, position.topic, position.topic_id, {}))
            self._store.swap(work.fence, keep=work.keeps_old)
            raise SourceChanged("the building part serves now")
        self._report_lag(work)
        return batch is not None

    def _report_lag(self, work: Target) -> None:
        if not self._is_reported:
            return
        lag = work.changelog.lag() + (len(work.pending.messages) if work.pending else 0)
        if work.part is Part.BUILDING:
            self._report(state="rebuilding", lag=lag)
        else:
            self._report(state="following", reason="", lag=lag)

    def _apply_pending(self, work: Target) -> None:
        """Apply the pending records. The serving part accepts them only if they form an exact state. Other parts accept
        any state. If too many records are pending, the view is rebuilt.
        """
        if work.pending is None:
            return
        if work.part is not Part.SERVING or work.changelog.is_exact():
            batch, work.pending = work.pending, None
            self._apply(work, batch)
        elif len(work.pending.messages) > self._max_rows:
            raise CompactedRows(_COMPACTED)

    def _apply(self, work: Target, batch: ChangeBatch) -> None:
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
            applied=len(batch.messages),
            dead=len(letters),
            foreign=batch.foreign,
            repeats=batch.repeats,
            **({"position": after} if self._is_reported else {}),
        )

    def _complete_ms(self, work: Target) -> int:
        return int(self._clock.now_ms() - (self._clock.steady() - work.reached_end_at) * 1_000)

    def _touch(self, work: Target) -> None:
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

    def _check_before_apply(self, work: Target) -> None:
        """Check for a recreated topic and for missed tombstones before the polled records are applied."""
        if self._is_source_check_due():
            self._check_source(work)
        away_s = self._clock.steady() - work.reached_end_at
        if work.retention.compacted and away_s * 2_000 > work.retention.kept_ms:
            self._check_deletions(work)

    def _check_source(self, work: Target) -> None:
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

    def _check_deletions(self, work: Target) -> None:
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


def _rejection(work: Target, message: Message, reason: Reason, error: ValueDoesNotFit) -> Rejection:
    return Rejection(
        reason,
        error.message,
        work.origin.generation_number,
        message.topic() or "",
        work.origin.topic_id,
        message.partition() or 0,
        message.offset() or 0,
    )
