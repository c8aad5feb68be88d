"""Writing with a request id: exactly once, however often it is asked for, over restarts and over several servers.

One transactional producer per app writes all of it, in one thread: the records of a request and the record that says
that it was carried out are one transaction. Requests that wait are written together. Whoever becomes the producer
fences the one before (its open transaction is aborted by the log), and then reads the topic of requests to its end, so
that it knows all that were ever carried out before it decides about the next. A server that is fenced takes its turn
again when it has something to write, reads on, and decides anew: nothing of what it was about to write is there.

Whatever breaks between the begin of a transaction and the answer, the same request finds out what became of it: there
is a record of it or there is not, and the records are there or are not with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.serve.errors import KeyReused, OutcomeUnknown, ServeError, TooBusy
from headrace.serve.writes.delivery import Delivery
from headrace.serve.writes.incoming import Incoming
from headrace.serve.writes.ledger import Carried, Ledger
from headrace.serve.writes.written import Written

__all__ = ["HEADER", "Lane", "Outcome", "Request"]

HEADER = "__headrace.request"
_TOGETHER_MAX = 200
_WAITING_MAX = 5_000
_POLL_S = 0.2
_PAUSE_S = 0.02
_PAUSE_S_MAX = 1.0
_TRANSACTION_MS = 60_000
_ANSWER_S = 20.0
_FOR_EVER = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._INVALID_ARG,
    KafkaError._UNSUPPORTED_FEATURE,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    written: Written
    repeated: bool
    """Whether it had been carried out before."""


@dataclass(slots=True)
class Request:
    token_id: str
    """Empty where no token is needed."""
    key: str
    topic: str
    topic_id: str
    records: list[Incoming]
    fingerprint: str
    deadline: float
    outcome: Future[Outcome] = field(default_factory=Future)

    @property
    def id(self) -> bytes:
        """Of one token and topic: others may have chosen the same key. A token's name may be given to another one."""
        told = msgspec.json.encode([self.token_id, self.topic, self.key])
        return hashlib.sha256(told).hexdigest().encode()


class Lane:
    def __init__(self, cluster: Cluster, app: str, path: Path, clock: Clock, keep_ms: int) -> None:
        self._cluster = cluster
        self._id = f"headrace.requests.{app}"
        self._path = path
        self._app = app
        self._keep_ms = keep_ms
        self._clock = clock
        self._waiting: queue.Queue[Request] = queue.Queue(_WAITING_MAX)
        self._producer: Producer | None = None
        self._ledger: Ledger | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serve requests", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            raise TooBusy("too many requests wait to be written", hint="send it again in a moment") from None

    def close(self, timeout_s: float = 10.0) -> None:
        self._stop.set()
        self._thread.join(timeout_s)

    # In the one thread

    def _run(self) -> None:
        while not self._stop.is_set() or not self._waiting.empty():
            try:
                first = self._waiting.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            together = [first]
            while len(together) < _TOGETHER_MAX and not self._waiting.empty():
                together.append(self._waiting.get_nowait())
            self._carry_out(together)
        self._let_go()
        if self._ledger is not None:
            self._ledger.close()

    def _carry_out(self, requests: Sequence[Request]) -> None:
        """Each request gets its outcome, or the error that kept it from being carried out."""
        waiting = [one for one in requests if one.outcome.set_running_or_notify_cancel()]
        pause_s = _PAUSE_S
        why = ""
        while waiting := self._in_time(waiting, why):
            try:
                waiting = self._try(waiting)
            except Exception as error:
                self._let_go()
                # The client raises that it is fenced while it tells what became of records: Python sees both at once,
                # or knows only that there was something.
                cause = error.__cause__ if isinstance(error, SystemError) and error.__cause__ else error
                if self._stop.is_set() or not _heals(cause):
                    self._fail(waiting, cause)
                    return
                why = str(cause)
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    def _in_time(self, waiting: list[Request], why: str) -> list[Request]:
        """Nobody waits for the others any more; whether they are carried out is theirs to ask."""
        for one in waiting:
            if self._clock.steady() > one.deadline and not one.outcome.done():
                one.outcome.set_exception(_unknown(why))
        return [one for one in waiting if not one.outcome.done()]

    @staticmethod
    def _fail(waiting: Sequence[Request], error: BaseException) -> None:
        told = from_kafka(error, "writing a request") if isinstance(error, KafkaException) else error
        for one in waiting:
            if not one.outcome.done():
                one.outcome.set_exception(told)

    def _try(self, waiting: list[Request]) -> list[Request]:
        """Those that are left: of several with one key, one is carried out, and the others are found then."""
        producer, ledger = self._owned()
        fresh: dict[bytes, Request] = {}
        again: list[Request] = []
        for one in waiting:
            if one.id in fresh:
                again.append(one)
            elif (carried := ledger.find(one.id)) is not None:
                _answer(one, carried)
            else:
                fresh[one.id] = one
        if fresh:
            self._write(producer, ledger, fresh)
        return again

    def _owned(self) -> tuple[Producer, Ledger]:
        if self._ledger is None:
            self._ledger = Ledger(self._path, self._cluster, self._app, self._keep_ms)
            self._ledger.ensure_topic()
        if self._producer is None:
            producer = self._cluster.producer(
                {
                    "transactional.id": self._id,
                    "transaction.timeout.ms": _TRANSACTION_MS,
                    "linger.ms": 0,
                    "retry.backoff.ms": 20,
                }
            )
            producer.init_transactions(_ANSWER_S)
            self._ledger.catch_up(self._clock.now_ms())
            self._producer = producer
        return self._producer, self._ledger

    def _let_go(self) -> None:
        """The next one to write takes over again, and looks what became of this."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # It may raise once more what it was let go for, in either form.
            with contextlib.suppress(KafkaException, SystemError):
                producer.purge()
                producer.flush(0.1)

    def _write(self, producer: Producer, ledger: Ledger, fresh: dict[bytes, Request]) -> None:
        producer.begin_transaction()
        deliveries = {
            key: Delivery(one.topic, one.records, [(HEADER, one.key.encode())]) for key, one in fresh.items()
        }
        try:
            for delivery in deliveries.values():
                delivery.send(producer)
            producer.flush(_ANSWER_S)
        except ServeError:
            producer.abort_transaction(_ANSWER_S)
            raise
        failed = {key: one.error for key, one in deliveries.items() if one.error is not None}
        if failed or not all(one.done for one in deliveries.values()):
            self._take_back(producer, ledger, fresh, failed)
            return
        now = self._clock.now_ms()
        carried = {
            key: Carried(one.fingerprint, now, Written(one.topic, one.topic_id, deliveries[key].places))
            for key, one in fresh.items()
        }
        notes = Delivery(
            ledger.topic, [Incoming(key, msgspec.json.encode(one)) for key, one in carried.items()]
        )
        notes.send(producer)
        producer.flush(_ANSWER_S)
        if notes.error is not None or not notes.done:
            raise KafkaException(notes.error or KafkaError(KafkaError._TIMED_OUT))
        producer.commit_transaction(_ANSWER_S)
        ledger.note(carried.items(), max(offset for _, offset in notes.places) + 1)
        for key, one in fresh.items():
            one.outcome.set_result(Outcome(carried[key].written, repeated=False))

    def _take_back(
        self,
        producer: Producer,
        ledger: Ledger,
        fresh: dict[bytes, Request],
        failed: dict[bytes, KafkaError],
    ) -> None:
        """One bad request must not fail those that it was written with: each is tried by itself."""
        error = next(iter(failed.values()), None)
        if error is not None and (error.fatal() or error.retriable()):
            raise KafkaException(error)
        if error is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        producer.abort_transaction(_ANSWER_S)
        if len(fresh) == 1:
            ((key, only),) = fresh.items()
            only.outcome.set_exception(
                from_kafka(failed[key], f"writing to topic {only.topic!r}", topic=only.topic)
            )
            return
        for key, one in fresh.items():
            self._write(producer, ledger, {key: one})


def _answer(request: Request, carried: Carried) -> None:
    if carried.fingerprint != request.fingerprint:
        request.outcome.set_exception(
            KeyReused(
                "this Idempotency-Key came with another body before, and that was carried out",
                hint="a new request needs a new key",
            )
        )
    else:
        request.outcome.set_result(Outcome(carried.written, repeated=True))


def _heals(error: BaseException) -> bool:
    """Whether the next try may do better: most often somebody else has taken a turn, or the log is away."""
    if isinstance(error, KafkaException):
        return error.args[0].code() not in _FOR_EVER
    return isinstance(error, SystemError) or (isinstance(error, HeadraceError) and error.retriable)


def _unknown(why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        "the log has not said in time whether it took the records",
        detail=why,
        hint="send the same request with the same Idempotency-Key again: it is carried out once",
    )
