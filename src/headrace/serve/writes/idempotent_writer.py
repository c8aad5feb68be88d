"""Writes with an Idempotency-Key: repeating a request writes its records exactly once, across restarts and servers.

Topic ``headrace.requests.<app>`` has one record per completed request. The same transaction writes this record and the
records of the request. Its key is the request's id. Its value contains the response and a hash of the request's body.
An SQLite index of that topic (``client/topic_index.py``) finds completed requests. The index file can be deleted at any
time.

Per app, one transactional writer in one thread writes all requests. Requests that arrive during a transaction share the
next transaction. Several servers can use the same transactional id, but only one at a time owns it. A new owner fences
the previous owner and reads the topic to its end before it handles a request. So it knows all completed requests. The
log aborts the open transaction of a fenced server. At its next write, that server becomes the owner again, reads the
new records of the topic, and checks again whether its requests are completed.

If anything fails between the start of a transaction and the response, the client repeats the request. The request's
record and its data are then either both in the log or both missing, so the server knows whether to write them.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from confluent_kafka import KafkaError, Message

from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.client.topic_index import IndexLayout, IndexRow, IndexTable, TopicIndex
from headrace.client.transactional_writer import (
    Delivery,
    OutgoingRecord,
    TransactionalWriter,
    can_reopen,
)
from headrace.clock import Clock
from headrace.serve.errors import IdempotencyKeyReused, OutcomeUnknown, TooBusy
from headrace.serve.writes.records import WriteRecord, WriteResult

__all__ = ["HEADER", "CompletedRequest", "CompletedRequests", "IdempotentWriter", "Outcome", "WriteRequest"]

HEADER = "__headrace.request"
_BATCH_MAX = 200
_QUEUE_MAX = 5_000
_POLL_S = 0.2
_RETRY_PAUSE_S = 0.02
_RETRY_PAUSE_S_MAX = 1.0
_WRITE_S_MAX = 20.0
_RECORD_BYTES_MAX = 1_000_000
_LAYOUT = IndexLayout(
    version=2,
    create="""
CREATE TABLE requests (id BLOB PRIMARY KEY, at_ms INTEGER NOT NULL, carried BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX by_time ON requests (at_ms);
""",
    tables={"requests": IndexTable("REPLACE INTO requests VALUES (?, ?, ?)")},
)


@dataclass(frozen=True, slots=True)
class Outcome:
    result: WriteResult
    repeated: bool
    """True if an earlier request with the same key wrote the records."""


@dataclass(slots=True)
class WriteRequest:
    token_id: str
    """Empty if the caller needs no token."""
    key: str
    topic: str
    topic_id: str
    records: list[WriteRecord]
    fingerprint: str
    """Hash of the request's body."""
    deadline: float
    outcome: Future[Outcome] = field(default_factory=Future)

    @property
    def id(self) -> bytes:
        """A hash of token id, topic and key, because other callers can choose the same key. The hash uses the
        token's id, not its name, because a name can be reused.
        """
        identity = msgspec.json.encode([self.token_id, self.topic, self.key])
        return hashlib.sha256(identity).hexdigest().encode()


class CompletedRequest(msgspec.Struct, frozen=True):
    """The value of a record in the topic of completed requests."""

    fingerprint: str
    at_ms: int
    written: WriteResult


_decoder = msgspec.json.Decoder(CompletedRequest)


class CompletedRequests:
    """The index of the topic of completed requests. Use it in one thread."""

    def __init__(self, path: Path, cluster: Cluster, app: str, keep_ms: int) -> None:
        self._cluster = cluster
        self._keep_ms = keep_ms
        self.topic = f"headrace.requests.{app}"
        self._index = TopicIndex(cluster, [self.topic], path, _LAYOUT, _index_row)

    def close(self) -> None:
        self._index.close()

    def ensure_topic(self) -> None:
        configs = {"cleanup.policy": "compact,delete", "retention.ms": str(self._keep_ms)}
        self._cluster.ensure_topic(self.topic, 1, configs)

    def catch_up(self, now_ms: int) -> None:
        """Read to the end of the topic and delete expired requests. The caller owns the transactional id, so no other
        process can write to the topic.
        """
        self._index.catch_up(owned=[self.topic])
        self._index.delete("requests", "at_ms < ?", now_ms - self._keep_ms)

    def add(self, completed: Iterable[tuple[bytes, CompletedRequest]], end: int) -> None:
        """Add requests whose records are in the topic before offset ``end``."""
        rows = (
            ("requests", (key, request.at_ms, msgspec.json.encode(request))) for key, request in completed
        )
        self._index.add(self.topic, rows, end)

    def find(self, key: bytes) -> CompletedRequest | None:
        rows = self._index.query("SELECT carried FROM requests WHERE id = ?", key)
        return _decoder.decode(rows[0][0]) if rows else None


def _index_row(message: Message) -> IndexRow | None:
    value = message.value()
    if value is None:
        return None
    return "requests", (message.key() or b"", _decoder.decode(value).at_ms, value)


class IdempotentWriter:
    def __init__(self, cluster: Cluster, app: str, path: Path, clock: Clock, keep_ms: int) -> None:
        self._cluster = cluster
        self._transactional_id = f"headrace.requests.{app}"
        self._path = path
        self._app = app
        self._keep_ms = keep_ms
        self._clock = clock
        self._queue: queue.Queue[WriteRequest] = queue.Queue(_QUEUE_MAX)
        self._writer: TransactionalWriter | None = None
        self._completed: CompletedRequests | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serve requests", daemon=True)
        self._thread.start()

    def submit(self, request: WriteRequest) -> None:
        try:
            self._queue.put_nowait(request)
        except queue.Full:
            raise TooBusy(
                f"too many write requests are waiting (limit {_QUEUE_MAX})",
                hint="repeat the request in a moment",
            ) from None

    def close(self, timeout_s: float = 10.0) -> None:
        self._stop.set()
        self._thread.join(timeout_s)

    # The rest runs in the writer's thread.

    def _run(self) -> None:
        while not self._stop.is_set() or not self._queue.empty():
            try:
                batch = [self._queue.get(timeout=_POLL_S)]
            except queue.Empty:
                continue
            while len(batch) < _BATCH_MAX and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            self._complete(batch)
        self._close_writer()
        if self._completed is not None:
            self._completed.close()

    def _complete(self, batch: Sequence[WriteRequest]) -> None:
        """Set the outcome or the error of each request. Retry errors from which the log can recover."""
        pending = [request for request in batch if request.outcome.set_running_or_notify_cancel()]
        pause_s = _RETRY_PAUSE_S
        reason = ""
        while pending := self._fail_expired(pending, reason):
            try:
                pending = self._write_new(pending)
            except Exception as error:
                self._close_writer()
                if self._stop.is_set() or not can_reopen(error):
                    _fail(pending, error)
                    return
                reason = str(error)
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 2, _RETRY_PAUSE_S_MAX)

    def _fail_expired(self, pending: list[WriteRequest], reason: str) -> list[WriteRequest]:
        """Fail the requests whose deadline has passed. The caller can repeat such a request to learn the outcome."""
        for request in pending:
            if self._clock.steady() > request.deadline and not request.outcome.done():
                request.outcome.set_exception(_unknown(reason))
        return [request for request in pending if not request.outcome.done()]

    def _write_new(self, pending: list[WriteRequest]) -> list[WriteRequest]:
        """Write the new requests. If several requests have the same id, write the first one and return the others,
        which the next call finds completed.
        """
        writer, completed = self._open_writer()
        new_requests: dict[bytes, WriteRequest] = {}
        duplicates: list[WriteRequest] = []
        for request in pending:
            if request.id in new_requests:
                duplicates.append(request)
            elif (earlier := completed.find(request.id)) is not None:
                _repeat(request, earlier)
            else:
                new_requests[request.id] = request
        if new_requests:
            self._write(writer, completed, new_requests)
        return duplicates

    def _open_writer(self) -> tuple[TransactionalWriter, CompletedRequests]:
        if self._completed is None:
            self._completed = CompletedRequests(self._path, self._cluster, self._app, self._keep_ms)
            self._completed.ensure_topic()
        if self._writer is None:
            writer = TransactionalWriter(
                self._cluster,
                self._transactional_id,
                f"requests of app {self._app}",
                wait_s=_WRITE_S_MAX,
                # With this limit, librdkafka itself rejects a larger record, and the transaction can continue.
                properties={"message.max.bytes": _RECORD_BYTES_MAX},
            )
            try:
                self._completed.catch_up(self._clock.now_ms())
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer, self._completed

    def _close_writer(self) -> None:
        """Close the writer. The next write opens a new one, which learns whether the last transaction was committed."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write(
        self,
        writer: TransactionalWriter,
        completed: CompletedRequests,
        new_requests: dict[bytes, WriteRequest],
    ) -> None:
        writer.begin()
        deliveries = {
            key: [writer.deliver(record) for record in _outgoing(request)]
            for key, request in new_requests.items()
        }
        writer.flush()
        errors = {
            key: delivery.error
            for key, own_deliveries in deliveries.items()
            for delivery in own_deliveries
            if delivery.error
        }
        if errors:
            self._write_each(writer, completed, new_requests, errors)
            return
        now_ms = self._clock.now_ms()
        done = {
            key: CompletedRequest(
                request.fingerprint,
                now_ms,
                WriteResult(request.topic, request.topic_id, _record_offsets(deliveries[key])),
            )
            for key, request in new_requests.items()
        }
        completions = [
            writer.deliver(OutgoingRecord(completed.topic, key, msgspec.json.encode(request)))
            for key, request in done.items()
        ]
        writer.flush()
        for completion in completions:
            if completion.error is not None:
                raise writer.error(completion.error, f"writing to topic {completed.topic!r}")
        writer.commit()
        completed.add(done.items(), max(completion.offset for completion in completions) + 1)
        for key, request in new_requests.items():
            request.outcome.set_result(Outcome(done[key].written, repeated=False))

    def _write_each(
        self,
        writer: TransactionalWriter,
        completed: CompletedRequests,
        new_requests: dict[bytes, WriteRequest],
        errors: dict[bytes, KafkaError],
    ) -> None:
        """Write each request in its own transaction, so that a rejected request does not fail the others."""
        error = next(iter(errors.values()))
        if error.fatal() or error.retriable():
            raise writer.error(error, "writing requests")
        writer.abort()
        if len(new_requests) == 1:
            ((key, request),) = new_requests.items()
            request.outcome.set_exception(
                from_kafka(errors[key], f"writing to topic {request.topic!r}", topic=request.topic)
            )
            return
        for key, request in new_requests.items():
            self._write(writer, completed, {key: request})


def _outgoing(request: WriteRequest) -> list[OutgoingRecord]:
    header = (HEADER, request.key.encode())
    return [
        OutgoingRecord(request.topic, record.key, record.value, (*record.headers, header), record.partition)
        for record in request.records
    ]


def _record_offsets(deliveries: Sequence[Delivery]) -> list[tuple[int, int]]:
    return [(delivery.partition, delivery.offset) for delivery in deliveries]


def _fail(pending: Sequence[WriteRequest], error: BaseException) -> None:
    for request in pending:
        if not request.outcome.done():
            request.outcome.set_exception(error)


def _repeat(request: WriteRequest, earlier: CompletedRequest) -> None:
    if earlier.fingerprint != request.fingerprint:
        request.outcome.set_exception(
            IdempotencyKeyReused(
                "an earlier, completed request with this Idempotency-Key had another body",
                hint="use a new key for a new request",
            )
        )
    else:
        request.outcome.set_result(Outcome(earlier.written, repeated=True))


def _unknown(reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        "the log did not confirm the records in time",
        detail=reason,
        hint="repeat the request with the same Idempotency-Key; its records are written exactly once",
    )
