"""Changes the states of letters: writes each letter back once, or dismisses it, even if processes are killed or several
processes do so at the same time.

One transactional producer per app writes the records of a batch and their states in one transaction. A new producer
fences the previous producer, and the log aborts that producer's open transaction. Then the new producer reads all
states, so it knows every letter that was handled before it writes a batch. A fenced job opens a new producer, reads the
new states and repeats its aborted batch.

    send the records               not visible yet
    send a state for each          with the location of its record
    commit                         records and states become visible
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from confluent_kafka import KafkaError

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.transactional_writer import (
    Delivery,
    OutgoingRecord,
    TransactionalWriter,
    can_reopen,
)
from headrace.clock import Clock
from headrace.model.codec.scalar_text import time_text
from headrace.ops.dead.errors import CorrectionRefused, ReplayStopped
from headrace.ops.dead.letter import REPLAY, Header, Letter, RecordId
from headrace.ops.dead.letter_index import LetterIndex
from headrace.ops.dead.letter_states import StateRecord, read_progress
from headrace.ops.dead.letters import original_headers
from headrace.ops.dead.replay_rules import Content, ReplayRules, Result, ResultState, dismissal_result

__all__ = ["StateChange", "StateWriter"]

_WRITE_S_MAX = 20.0
_RETRY_S_MAX = 60.0
_PAUSE_S = 0.02
_PAUSE_S_MAX = 1.0
_BATCH_BYTES = 1_000_000
_SETTLE_S = 5.0
_RECORD_ERRORS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
}
"""Errors of a batch that one of its records causes. The log may report them for that record or for the others."""

Headers = Mapping[bytes, tuple[Header, ...]]


@dataclass(frozen=True, slots=True)
class StateChange:
    """What a job does with its letters."""

    job: str
    force: bool = False
    """Whether to handle letters that are not open."""
    dismissal: str = ""
    """Why the letters are dismissed. Empty: they are written back."""
    value: bytes | None = None
    """The corrected value that is written back instead of the letter's value."""

    @property
    def result_state(self) -> ResultState:
        return "dismissed" if self.dismissal else "written"


class StateWriter:
    """It is used by one thread. Setting ``stop`` ends its waits."""

    def __init__(
        self,
        cluster: Cluster,
        app: App,
        index: LetterIndex,
        clock: Clock,
        future_us: int,
        stop: threading.Event,
    ) -> None:
        self._cluster = cluster
        self._app = app
        self._index = index
        self._clock = clock
        self._future_us = future_us
        self._stop = stop
        self._writer: TransactionalWriter | None = None
        self._rules = ReplayRules(cluster, app, future_us)
        self._settled_s = clock.steady()

    def check(self, letters: Sequence[Letter], change: StateChange) -> list[Result]:
        """Return the results of a dry run, which writes nothing and fences no other job."""
        headers_by_id = self._headers(letters, change)
        results, first = [], dict[bytes, Letter]()
        for letter in letters:
            result = self._check(letter, headers_by_id, change)
            if result.state == "ready" and first.setdefault(letter.id, letter) is not letter:
                result = _duplicate(result, first[letter.id])
            results.append(result)
        return results

    def write(self, letters: Sequence[Letter], change: StateChange) -> list[Result]:
        """Write the letters back, or dismiss them. Return a result per letter, in the same order."""
        pause_s, deadline = _PAUSE_S, self._clock.steady() + _RETRY_S_MAX
        headers_by_id: Headers | None = None
        rejected: dict[bytes, str] = {}
        one_per_batch = False
        while True:
            try:
                headers_by_id = self._headers(letters, change) if headers_by_id is None else headers_by_id
                return self._write_once(letters, headers_by_id, rejected, change, one_per_batch=one_per_batch)
            except _RecordsRejected as error:
                if len(error.reasons) == 1:
                    rejected |= error.reasons
                # The log does not always report which record of a batch it rejects, so send each record in its own
                # batch.
                one_per_batch = True
            except Exception as error:
                self.release()
                if not can_reopen(error):
                    raise
                if self._stop.is_set() or self._clock.steady() > deadline:
                    raise ReplayStopped(
                        "the log did not confirm the records in time",
                        detail=str(error),
                        hint="start the same command again: letters that were handled are not handled twice",
                    ) from error
                # Pause for a random time, so that two jobs do not fence each other again and again.
                self._stop.wait(pause_s * random.uniform(0.5, 1.5))  # noqa: S311
                pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    def release(self) -> None:
        """Close the writer. The next batch claims the transactional id again, and the states then show whether this
        transaction was committed.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _headers(self, letters: Sequence[Letter], change: StateChange) -> Headers:
        """Return the original headers by the letter's id. Letters whose headers are unknown are absent."""
        if change.dismissal:
            return {}
        missing = [letter for letter in letters if not letter.headers and not self._rules.refusal(letter)]
        originals = original_headers(
            self._cluster, (letter for letter in missing if letter.writer != "spring")
        )
        known = {
            letter.id: letter.headers for letter in letters if letter.headers or letter.writer == "spring"
        }
        return {**originals, **known}

    def _check(self, letter: Letter, headers_by_id: Headers, change: StateChange) -> Result:
        if change.dismissal:
            return dismissal_result(letter, self._index, force=change.force)
        return self._rules.check(
            letter,
            self._content(letter, change),
            self._index,
            headers_by_id.get(letter.id),
            self._clock.now_ms(),
            force=change.force,
        )

    def _content(self, letter: Letter, change: StateChange) -> Content:
        """Return the key and the value to write. A corrected value must fit, and it defines the key."""
        if change.value is None:
            return Content(letter.key, letter.value)
        refusal = self._rules.refusal(letter)
        if refusal:
            raise CorrectionRefused(f"letter {letter.record_id} cannot be written back: {refusal}")
        assert letter.origin is not None
        topic = letter.origin.topic
        fault = self._rules.value_fault(topic, change.value, self._clock.now_ms())
        if fault:
            raise CorrectionRefused(
                f"the corrected value would be rejected again: {fault}",
                hint=f"write a value that matches the schema of topic {topic!r}",
            )
        return Content(self._rules.key_of(topic, change.value) or letter.key, change.value)

    def _write_once(
        self,
        letters: Sequence[Letter],
        headers_by_id: Headers,
        rejected: Mapping[bytes, str],
        change: StateChange,
        *,
        one_per_batch: bool,
    ) -> list[Result]:
        writer = self._open_writer()
        self._update_settled()
        results: list[Result] = []
        to_write: dict[bytes, tuple[Letter, Result]] = {}
        for letter in letters:
            result = self._check(letter, headers_by_id, change)
            info = self._index.find(letter.id)
            record = info.record if info is not None else None
            if record is not None and record.job == change.job:
                # The state was committed, but the confirmation was lost, or another refusal of the letter came before.
                is_same = record.letter == letter.record_id
                state = change.result_state if is_same else "skipped"
                result = msgspec.structs.replace(result, state=state, to=record.to, why="")
            elif result.state == "ready" and letter.id in rejected:
                result = msgspec.structs.replace(result, state="cannot", to=None, why=rejected[letter.id])
            elif result.state == "ready" and letter.id in to_write:
                result = _duplicate(result, to_write[letter.id][0])
            elif result.state == "ready":
                to_write[letter.id] = letter, result
            results.append(result)
        records = (
            self._write(writer, to_write, headers_by_id, change, one_per_batch=one_per_batch)
            if to_write
            else {}
        )
        done = {record.letter: record.to for record in records.values()}
        return [
            msgspec.structs.replace(result, state=change.result_state, to=done[result.letter])
            if result.letter in done
            else result
            for result in results
        ]

    def _open_writer(self) -> TransactionalWriter:
        if self._writer is None:
            self._index.ensure_states_topic()
            writer = TransactionalWriter(
                self._cluster,
                f"headrace.replays.{self._app.name}",
                f"letter states of app {self._app.name}",
                wait_s=_WRITE_S_MAX,
            )
            try:
                self._index.catch_up(is_owner=True)
                self._settled_s = self._clock.steady()
                self._rules = ReplayRules(self._cluster, self._app, self._future_us)
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def _update_settled(self) -> None:
        """A flow can begin a new generation during a long job."""
        if self._clock.steady() - self._settled_s > _SETTLE_S:
            self._index.settle(read_progress(self._cluster, self._app))
            self._settled_s = self._clock.steady()

    def _write(
        self,
        writer: TransactionalWriter,
        to_write: Mapping[bytes, tuple[Letter, Result]],
        headers_by_id: Headers,
        change: StateChange,
        *,
        one_per_batch: bool,
    ) -> dict[bytes, StateRecord]:
        now_ms = self._clock.now_ms()
        writer.begin()
        sent: dict[bytes, Delivery] = {}
        for key, (letter, _) in to_write.items():
            if change.dismissal:
                break
            sent[key] = writer.deliver(self._record(letter, headers_by_id.get(key, ()), change, now_ms))
            if one_per_batch or self._bytes_max(letter) < _BATCH_BYTES:
                # Two records that are small enough alone can be too large for one batch.
                writer.flush()
                if sent[key].error is not None:
                    break
        writer.flush()
        rejected = {key: delivery.error for key, delivery in sent.items() if delivery.error is not None}
        if rejected and all(error.code() in _RECORD_ERRORS for error in rejected.values()):
            writer.abort()
            raise _RecordsRejected(
                {key: f"the log rejects it: {error.str()}" for key, error in rejected.items()}
            )
        _check_delivered(writer, sent.values())
        records = {
            key: _state_record(letter, change, sent.get(key), now_ms) for key, (letter, _) in to_write.items()
        }
        topic = self._index.states_topic
        deliveries = {
            key: writer.deliver(OutgoingRecord(topic, key, msgspec.json.encode(record), (), 0))
            for key, record in records.items()
        }
        writer.flush()
        _check_delivered(writer, deliveries.values())
        writer.commit()
        end = max(delivery.offset for delivery in deliveries.values()) + 1
        self._index.add_states(
            ((key, deliveries[key].offset, record) for key, record in records.items()), end
        )
        return records

    def _bytes_max(self, letter: Letter) -> int:
        assert letter.origin is not None
        target = self._rules.target(letter.origin.topic)
        return 0 if target is None else target.bytes_max

    def _record(
        self, letter: Letter, own_headers: tuple[Header, ...], change: StateChange, now_ms: int
    ) -> OutgoingRecord:
        assert letter.origin is not None
        replay = {
            "letter": str(letter.record_id),
            "origin": str(letter.origin),
            "at": time_text(datetime.fromtimestamp(now_ms / 1_000, UTC)),
            **({} if change.value is None else {"corrected": "true"}),
        }
        headers = (*own_headers, *((f"{REPLAY}{name}", text.encode()) for name, text in replay.items()))
        content = self._content(letter, change)
        partition = self._rules.partition(letter, content)
        return OutgoingRecord(letter.origin.topic, content.key, content.value, headers, partition)


class _RecordsRejected(Exception):
    """The log rejects these records. Their batch was not written."""

    def __init__(self, reasons: dict[bytes, str]) -> None:
        super().__init__(f"{len(reasons)} records")
        self.reasons = reasons


def _state_record(letter: Letter, change: StateChange, delivery: Delivery | None, now_ms: int) -> StateRecord:
    fields = {"letter": letter.record_id, "origin": letter.origin, "at_ms": now_ms, "job": change.job}
    if delivery is None:
        return StateRecord(**fields, state="dismissed", reason=change.dismissal)  # type: ignore[arg-type]
    assert letter.origin is not None
    to = RecordId(letter.origin.topic, delivery.partition, delivery.offset)
    return StateRecord(**fields, to=to, corrected=change.value is not None)  # type: ignore[arg-type]


def _check_delivered(writer: TransactionalWriter, sent: Iterable[Delivery]) -> None:
    for delivery in sent:
        if delivery.error is not None:
            raise writer.error(delivery.error, "sending records")


def _duplicate(result: Result, first: Letter) -> Result:
    why = f"it is the same record as letter {first.record_id}, which is handled"
    return msgspec.structs.replace(result, state="skipped", to=None, bytes=0, why=why)
