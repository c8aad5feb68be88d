"""Writing letters back, each once, whatever is killed on the way and however many do it at a time.

One transactional producer per app writes all of it: the records of a piece, and the marks that say so, are one
transaction. Whoever becomes the producer fences the one before (its open transaction is aborted by the log), and then
reads the topic of marks to its end, so that it knows all that was ever written back before it decides about the next
piece. One that is fenced takes its turn again, reads on, and decides anew: nothing of what it was about to write is
there.

    records are sent               nobody sees them yet
    a mark of each is sent         with the place that the record has got
    commit                         everybody sees all of it
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.texts import time_text
from headrace.ops.dead.errors import ReplayStopped
from headrace.ops.dead.judge import Judge, Result
from headrace.ops.dead.letter import REPLAY, Header, Letter
from headrace.ops.dead.mark import Mark
from headrace.ops.dead.marks import Marks
from headrace.ops.dead.originals import original_headers
from headrace.ops.dead.sending import Sending

__all__ = ["Replayer"]

_ANSWER_S = 20.0
_TRANSACTION_MS = 60_000
_PATIENCE_S = 60.0
_PAUSE_S = 0.02
_PAUSE_S_MAX = 1.0
_RECORD_BYTES_MAX = 1_000_000_000
_BATCH_BYTES = 1_000_000
_FOR_EVER = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._INVALID_ARG,
    KafkaError._UNSUPPORTED_FEATURE,
}
_ITS_OWN = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
}
"""What the log has against one record, or against one that was in a batch with it."""

Headers = Mapping[bytes, tuple[Header, ...]]


class Replayer:
    """For one thread. ``stop`` ends what is waited for."""

    def __init__(self, cluster: Cluster, app: App, marks: Marks, clock: Clock, stop: threading.Event) -> None:
        self._cluster = cluster
        self._app = app
        self._marks = marks
        self._clock = clock
        self._stop = stop
        self._producer: Producer | None = None
        self._judge = Judge(cluster, app)

    def look(self, letters: Sequence[Letter], *, again: bool) -> list[Result]:
        """What would become of them; nothing is written, and nobody is fenced."""
        own = self._headers(letters)
        found, first = [], dict[bytes, Letter]()
        for letter in letters:
            mark = None if again else self._marks.find(letter.id)
            result = self._judge.judge(letter, mark, own.get(letter.id))
            if result.state == "ready" and first.setdefault(letter.id, letter) is not letter:
                result = _twin(result, first[letter.id])
            found.append(result)
        return found

    def replay(self, letters: Sequence[Letter], job: str, *, again: bool) -> list[Result]:
        """What became of each, in their order."""
        pause_s, deadline = _PAUSE_S, self._clock.steady() + _PATIENCE_S
        own: Headers | None = None
        refused: dict[bytes, str] = {}
        alone = False
        while True:
            try:
                own = self._headers(letters) if own is None else own
                return self._try(letters, own, refused, job, again=again, alone=alone)
            except _Refused as error:
                if len(error.why) == 1:
                    refused |= error.why
                # Of a batch that is refused it may not be said for which of its records: so each has one of its own.
                alone = True
            except Exception as error:
                self.let_go()
                # The client raises that it is fenced while it tells what became of records: Python sees both at once,
                # or knows only that there was something.
                cause = error.__cause__ if isinstance(error, SystemError) and error.__cause__ else error
                if not _heals(cause):
                    raise _told(cause) from error
                if self._stop.is_set() or self._clock.steady() > deadline:
                    raise ReplayStopped(
                        "the log has not said in time whether it took the records",
                        detail=str(cause),
                        hint="replay them again: what was written is noted, and is not written twice",
                    ) from error
                # Two that take each other's turn all the time would get nowhere.
                self._stop.wait(pause_s * random.uniform(0.5, 1.5))  # noqa: S311
                pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    def _headers(self, letters: Sequence[Letter]) -> Headers:
        """The records' own, by the letter's id; without those that nobody knows."""
        asked = [one for one in letters if not one.headers and not self._judge.why_not(one)]
        found = original_headers(self._cluster, (one for one in asked if one.writer != "spring"))
        return {**found, **{one.id: one.headers for one in letters if one.headers or one.writer == "spring"}}

    def _try(
        self,
        letters: Sequence[Letter],
        own: Headers,
        refused: Mapping[bytes, str],
        job: str,
        *,
        again: bool,
        alone: bool,
    ) -> list[Result]:
        producer = self._owned()
        found: list[Result] = []
        chosen: dict[bytes, tuple[Letter, Result]] = {}
        for letter in letters:
            mark = self._marks.find(letter.id)
            if mark is not None and again and mark.job != job:
                mark = None
            result = self._judge.judge(letter, mark, own.get(letter.id))
            if mark is not None and (mark.job, mark.letter) == (job, letter.place):
                # It was committed, and whoever wrote it did not hear of that.
                result = msgspec.structs.replace(result, state="written", why="")
            elif result.state == "ready" and letter.id in refused:
                result = msgspec.structs.replace(result, state="cannot", to=None, why=refused[letter.id])
            elif result.state == "ready" and letter.id in chosen:
                result = _twin(result, chosen[letter.id][0])
            elif result.state == "ready":
                chosen[letter.id] = letter, result
            found.append(result)
        marks = self._write(producer, chosen, own, job, alone=alone) if chosen else {}
        written = {one.letter: one.to for one in marks.values()}
        return [
            msgspec.structs.replace(one, state="written", to=written[one.letter])
            if one.letter in written
            else one
            for one in found
        ]

    def _owned(self) -> Producer:
        if self._producer is None:
            self._marks.ensure_topic()
            producer = self._cluster.producer(
                {
                    "transactional.id": f"headrace.replays.{self._app.name}",
                    "transaction.timeout.ms": _TRANSACTION_MS,
                    # The topics say how large a record may be.
                    "message.max.bytes": _RECORD_BYTES_MAX,
                    "batch.size": _BATCH_BYTES,
                    "linger.ms": 0,
                    "retry.backoff.ms": 20,
                }
            )
            producer.init_transactions(_ANSWER_S)
            self._marks.catch_up(all_of_it=True)
            self._judge = Judge(self._cluster, self._app)
            self._producer = producer
        return self._producer

    def let_go(self) -> None:
        """The next piece takes over again, and looks what became of this."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # It may raise once more what it was let go for, in either form.
            with contextlib.suppress(KafkaException, SystemError):
                producer.purge()
                producer.flush(0.1)

    def _write(
        self,
        producer: Producer,
        chosen: Mapping[bytes, tuple[Letter, Result]],
        own: Headers,
        job: str,
        *,
        alone: bool,
    ) -> dict[bytes, Mark]:
        now_ms = self._clock.now_ms()
        producer.begin_transaction()
        records = {
            key: self._sending(letter, own.get(key, ()), now_ms) for key, (letter, _) in chosen.items()
        }
        for key, record in records.items():
            record.send(producer)
            if alone or self._bytes_max(chosen[key][0]) < _BATCH_BYTES:
                # Two that fit by themselves may not in one batch.
                producer.flush(_ANSWER_S)
                if record.error is not None:
                    break
        producer.flush(_ANSWER_S)
        against = {key: one.error for key, one in records.items() if one.error is not None}
        if against and all(one.code() in _ITS_OWN for one in against.values()):
            producer.abort_transaction(_ANSWER_S)
            raise _Refused({key: f"the log refuses it: {one.str()}" for key, one in against.items()})
        _expect_sent(records.values())
        marks: dict[bytes, Mark] = {}
        for key, (letter, _) in chosen.items():
            place = records[key].place
            assert letter.origin is not None
            assert place is not None
            marks[key] = Mark(letter.place, letter.origin, place, now_ms, job)
        notes = {
            key: Sending(self._marks.topic, 0, key, msgspec.json.encode(one)) for key, one in marks.items()
        }
        for note in notes.values():
            note.send(producer)
        producer.flush(_ANSWER_S)
        _expect_sent(notes.values())
        producer.commit_transaction(_ANSWER_S)
        places = {key: note.place.offset for key, note in notes.items() if note.place is not None}
        self._marks.note(((key, places[key], one) for key, one in marks.items()), max(places.values()) + 1)
        return marks

    def _bytes_max(self, letter: Letter) -> int:
        assert letter.origin is not None
        target = self._judge.target(letter.origin.topic)
        return 0 if target is None else target.bytes_max

    def _sending(self, letter: Letter, own: tuple[Header, ...], now_ms: int) -> Sending:
        assert letter.origin is not None
        said = {
            "letter": str(letter.place),
            "origin": str(letter.origin),
            "at": time_text(datetime.fromtimestamp(now_ms / 1_000, UTC)),
        }
        headers = [*own, *((f"{REPLAY}{name}", text.encode()) for name, text in said.items())]
        number = self._judge.partition(letter)
        return Sending(letter.origin.topic, number, letter.key, letter.value, headers)


class _Refused(Exception):
    """The log takes these not, by themselves; nothing of their piece was written."""

    def __init__(self, why: dict[bytes, str]) -> None:
        super().__init__(f"{len(why)} records")
        self.why = why


def _expect_sent(sent: Iterable[Sending]) -> None:
    for one in sent:
        if one.error is not None:
            raise KafkaException(one.error)
        if one.place is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _twin(result: Result, first: Letter) -> Result:
    why = f"it is the same record as letter {first.place}, which is written"
    return msgspec.structs.replace(result, state="already", to=None, bytes=0, why=why)


def _heals(error: BaseException) -> bool:
    """Whether the next try may do better: most often somebody else has taken a turn, or the log is away."""
    if isinstance(error, KafkaException):
        return error.args[0].code() not in _FOR_EVER
    return isinstance(error, SystemError) or (isinstance(error, HeadraceError) and error.retriable)


def _told(error: BaseException) -> BaseException:
    return from_kafka(error, "writing letters back") if isinstance(error, KafkaException) else error
