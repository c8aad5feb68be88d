"""Writes each letter back once, even if processes are killed or several processes replay at the same time.

One transactional producer per app writes the records of a batch and their marks in one transaction. A new producer
fences the previous producer, and the log aborts that producer's open transaction. Then the new producer reads all
marks, so it knows every letter that was written back before it writes a batch. A fenced replay opens a new producer,
reads the new marks and repeats its aborted batch.

    send the records               not visible yet
    send a mark for each           with the coordinates of its record
    commit                         records and marks become visible
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
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
from headrace.ops.dead.errors import ReplayStopped
from headrace.ops.dead.letter import REPLAY, Header, Letter, RecordId
from headrace.ops.dead.letters import original_headers
from headrace.ops.dead.marks import Mark, Marks
from headrace.ops.dead.replay_rules import ReplayRules, Result

__all__ = ["Replayer"]

_WRITE_S_MAX = 20.0
_RETRY_S_MAX = 60.0
_PAUSE_S = 0.02
_PAUSE_S_MAX = 1.0
_BATCH_BYTES = 1_000_000
_RECORD_ERRORS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
}
"""Errors of a batch that one of its records causes. The log may report them for that record or for the others."""

Headers = Mapping[bytes, tuple[Header, ...]]


class Replayer:
    """Replays letters. It is used by one thread. Setting ``stop`` ends its waits."""

    def __init__(self, cluster: Cluster, app: App, marks: Marks, clock: Clock, stop: threading.Event) -> None:
        self._cluster = cluster
        self._app = app
        self._marks = marks
        self._clock = clock
        self._stop = stop
        self._writer: TransactionalWriter | None = None
        self._rules = ReplayRules(cluster, app)

    def check(self, letters: Sequence[Letter], *, again: bool) -> list[Result]:
        """Return the results of a dry run, which writes nothing and fences no other replay."""
        headers_by_id = self._headers(letters)
        results, first = [], dict[bytes, Letter]()
        for letter in letters:
            mark = None if again else self._marks.find(letter.id)
            result = self._rules.check(letter, mark, headers_by_id.get(letter.id))
            if result.state == "ready" and first.setdefault(letter.id, letter) is not letter:
                result = _duplicate(result, first[letter.id])
            results.append(result)
        return results

    def replay(self, letters: Sequence[Letter], job: str, *, again: bool) -> list[Result]:
        """Write the letters back. Return a result per letter, in the same order."""
        pause_s, deadline = _PAUSE_S, self._clock.steady() + _RETRY_S_MAX
        headers_by_id: Headers | None = None
        rejected: dict[bytes, str] = {}
        one_per_batch = False
        while True:
            try:
                headers_by_id = self._headers(letters) if headers_by_id is None else headers_by_id
                return self._replay_once(
                    letters, headers_by_id, rejected, job, again=again, one_per_batch=one_per_batch
                )
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
                        hint="start the replay again: letters that were written are marked and are not written twice",
                    ) from error
                # Pause for a random time, so that two replays do not fence each other again and again.
                self._stop.wait(pause_s * random.uniform(0.5, 1.5))  # noqa: S311
                pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    def _headers(self, letters: Sequence[Letter]) -> Headers:
        """Return the original headers by the letter's id. Letters whose headers are unknown are absent."""
        missing = [letter for letter in letters if not letter.headers and not self._rules.refusal(letter)]
        originals = original_headers(
            self._cluster, (letter for letter in missing if letter.writer != "spring")
        )
        known = {
            letter.id: letter.headers for letter in letters if letter.headers or letter.writer == "spring"
        }
        return {**originals, **known}

    def _replay_once(
        self,
        letters: Sequence[Letter],
        headers_by_id: Headers,
        rejected: Mapping[bytes, str],
        job: str,
        *,
        again: bool,
        one_per_batch: bool,
    ) -> list[Result]:
        writer = self._open_writer()
        results: list[Result] = []
        to_write: dict[bytes, tuple[Letter, Result]] = {}
        for letter in letters:
            mark = self._marks.find(letter.id)
            if mark is not None and again and mark.job != job:
                mark = None
            result = self._rules.check(letter, mark, headers_by_id.get(letter.id))
            if mark is not None and (mark.job, mark.letter) == (job, letter.record_id):
                # The letter was committed, but the confirmation was lost.
                result = msgspec.structs.replace(result, state="written", why="")
            elif result.state == "ready" and letter.id in rejected:
                result = msgspec.structs.replace(result, state="cannot", to=None, why=rejected[letter.id])
            elif result.state == "ready" and letter.id in to_write:
                result = _duplicate(result, to_write[letter.id][0])
            elif result.state == "ready":
                to_write[letter.id] = letter, result
            results.append(result)
        marks = (
            self._write(writer, to_write, headers_by_id, job, one_per_batch=one_per_batch) if to_write else {}
        )
        written = {mark.letter: mark.to for mark in marks.values()}
        return [
            msgspec.structs.replace(result, state="written", to=written[result.letter])
            if result.letter in written
            else result
            for result in results
        ]

    def _open_writer(self) -> TransactionalWriter:
        if self._writer is None:
            self._marks.ensure_topic()
            writer = TransactionalWriter(
                self._cluster,
                f"headrace.replays.{self._app.name}",
                f"replays of app {self._app.name}",
                wait_s=_WRITE_S_MAX,
            )
            try:
                self._marks.catch_up(is_owner=True)
                self._rules = ReplayRules(self._cluster, self._app)
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer

    def release(self) -> None:
        """Close the writer. The next batch claims the transactional id again, and the marks then show whether this
        transaction was committed.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write(
        self,
        writer: TransactionalWriter,
        to_write: Mapping[bytes, tuple[Letter, Result]],
        headers_by_id: Headers,
        job: str,
        *,
        one_per_batch: bool,
    ) -> dict[bytes, Mark]:
        now_ms = self._clock.now_ms()
        writer.begin()
        sent: dict[bytes, Delivery] = {}
        for key, (letter, _) in to_write.items():
            sent[key] = writer.deliver(self._record(letter, headers_by_id.get(key, ()), now_ms))
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
        marks: dict[bytes, Mark] = {}
        for key, (letter, _) in to_write.items():
            assert letter.origin is not None
            written = RecordId(letter.origin.topic, sent[key].partition, sent[key].offset)
            marks[key] = Mark(letter.record_id, letter.origin, written, now_ms, job)
        deliveries = {
            key: writer.deliver(OutgoingRecord(self._marks.topic, key, msgspec.json.encode(mark), (), 0))
            for key, mark in marks.items()
        }
        writer.flush()
        _check_delivered(writer, deliveries.values())
        writer.commit()
        end = max(delivery.offset for delivery in deliveries.values()) + 1
        self._marks.add(((key, deliveries[key].offset, mark) for key, mark in marks.items()), end)
        return marks

    def _bytes_max(self, letter: Letter) -> int:
        assert letter.origin is not None
        target = self._rules.target(letter.origin.topic)
        return 0 if target is None else target.bytes_max

    def _record(self, letter: Letter, headers_by_id: tuple[Header, ...], now_ms: int) -> OutgoingRecord:
        assert letter.origin is not None
        replay = {
            "letter": str(letter.record_id),
            "origin": str(letter.origin),
            "at": time_text(datetime.fromtimestamp(now_ms / 1_000, UTC)),
        }
        headers = (*headers_by_id, *((f"{REPLAY}{name}", text.encode()) for name, text in replay.items()))
        partition = self._rules.partition(letter)
        return OutgoingRecord(letter.origin.topic, letter.key, letter.value, headers, partition)


class _RecordsRejected(Exception):
    """The log rejects these records. Their batch was not written."""

    def __init__(self, reasons: dict[bytes, str]) -> None:
        super().__init__(f"{len(reasons)} records")
        self.reasons = reasons


def _check_delivered(writer: TransactionalWriter, sent: Iterable[Delivery]) -> None:
    for delivery in sent:
        if delivery.error is not None:
            raise writer.error(delivery.error, "sending records")


def _duplicate(result: Result, first: Letter) -> Result:
    why = f"it is the same record as letter {first.record_id}, which is written back"
    return msgspec.structs.replace(result, state="already", to=None, bytes=0, why=why)
