"""Writes to the log exactly once, with a transactional producer.

    begin     start a transaction
    send      send records; readers of committed records do not see them yet
    flush     wait until the log has every record, and each record has its offset
    commit    make all records visible at once
    abort     discard all records

The last writer that opened a transactional id owns it. The log aborts the open transaction of the previous owner, and
refuses everything that the previous owner sends later. So a new owner first reads the committed records and then
decides what to write. No other writer of the id can change them any more.

After any error, close the writer. ``can_reopen`` returns whether a new writer may succeed. If ``commit`` fails, the
transaction may or may not be committed. The new owner must read the log to find out.

LogError
└── WriterRefused    the log refuses this writer: its id has a new owner, or its transaction timed out
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.errors import HeadraceError

__all__ = ["BULK", "Delivery", "OutgoingRecord", "TransactionalWriter", "WriterRefused", "can_reopen"]

BULK: Mapping[str, Any] = {
    "compression.type": "lz4",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 50_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 500,
}
"""Producer properties for many rows per transaction."""
_DEFAULTS: Mapping[str, Any] = {
    # The settings of the topic limit the size of a record.
    "message.max.bytes": 1_000_000_000,
    "batch.size": 1_000_000,
    "linger.ms": 0,
    "retry.backoff.ms": 20,
}
_OWNED_BY_ANOTHER = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
)
# librdkafka reports any later error of a refused producer as _FATAL. The broker returns the other two codes when it has
# forgotten an idle producer.
_REFUSED = _OWNED_BY_ANOTHER | {
    KafkaError._FATAL,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
_PERMANENT = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._INVALID_ARG,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)
_RESPONSE_S = 30.0
_POLL_S = 0.05
_CLOSE_S = 1.0

Headers = Sequence[tuple[str, bytes | None]]
_T = TypeVar("_T")


class WriterRefused(LogError):
    """The log refuses all further writes of this writer. A new writer with the same id can write."""

    def __init__(self, message: str, cause: KafkaError, *, open_ms: int) -> None:
        super().__init__(
            f"{message}: the log refuses this writer {open_ms} ms after its transaction began",
            name=cause.name().lstrip("_"),
            detail=cause.str(),
            retriable=True,
        )
        self.kafka_error = cause
        self.open_ms = open_ms

    @property
    def has_new_owner(self) -> bool:
        """Whether another writer may have opened the id. The log returns the same error code after a transaction timed
        out.
        """
        return self.kafka_error is not None and self.kafka_error.code() in _OWNED_BY_ANOTHER


def can_reopen(error: BaseException) -> bool:
    """Whether a new writer with the same id may succeed, for example after another writer opened the id, or after the
    log was unreachable.
    """
    if isinstance(error, KafkaException):
        return error.args[0].code() not in _PERMANENT
    if isinstance(error, LogError) and error.kafka_error is not None:
        return error.kafka_error.code() not in _PERMANENT
    return isinstance(error, HeadraceError) and error.retriable


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = -1
    """-1: the partitioner chooses the partition by the key."""


class Delivery:
    """The result of one record: its partition and offset, or an error. It is set after ``flush``."""

    __slots__ = ("error", "is_done", "offset", "partition")

    def __init__(self) -> None:
        self.is_done = False
        self.partition = -1
        self.offset = -1
        self.error: KafkaError | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Set the result. librdkafka calls this."""
        self.is_done = True
        if error is not None:
            self.error = error
        else:
            self.partition, self.offset = message.partition() or 0, message.offset() or 0


class TransactionalWriter:
    """Not thread-safe. Every error message begins with ``purpose``, for example "flow totals". ``wait_s`` limits each
    operation, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        purpose: str,
        *,
        timeout_ms: int = 60_000,
        wait_s: float = 120.0,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Take over the id from its previous owner. ``timeout_ms`` is Kafka's ``transaction.timeout.ms``."""
        self.id = transactional_id
        self._cluster = cluster
        self._purpose = purpose
        self._wait_s = wait_s
        self._response_s = min(wait_s, _RESPONSE_S)
        self._began = time.monotonic()
        self._producer: Producer | None = cluster.producer(
            {
                **_DEFAULTS,
                **(properties or {}),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
            }
        )
        try:
            self._call(
                lambda: self._client.init_transactions(self._response_s), "opening the transactional id"
            )
        except LogError:
            self.close()
            raise

    def begin(self) -> None:
        self._began = time.monotonic()
        self._call(lambda: self._client.begin_transaction(), "beginning a transaction")

    def send_rows(self, topic: str, keys: Sequence[str], values: Sequence[str | None]) -> None:
        """Queue rows in order, without a result per row. This is the hot path."""
        produce = self._client.produce
        try:
            for key, value in zip(keys, values, strict=True):
                try:
                    produce(topic, value, key)
                except (BufferError, KafkaException):
                    self._send(topic, key, value)
        finally:
            # Otherwise the traceback of an error would keep the producer alive.
            del produce

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        for record in records:
            self.send_one(record)

    def send_one(self, record: OutgoingRecord) -> None:
        self._send(record.topic, record.key, record.value, record.headers, record.partition)

    def deliver(self, record: OutgoingRecord) -> Delivery:
        """Queue a record and return its result object, which ``flush`` completes. If the client refuses the record
        (too large, or the transaction has failed), the result has the error immediately.
        """
        delivery = Delivery()
        try:
            self._produce(
                record.topic, record.key, record.value, record.headers, record.partition, delivery.report
            )
        except KafkaException as error:
            delivery.is_done, delivery.error = True, error.args[0]
        return delivery

    def flush(self) -> None:
        """Wait until the log has every record of the transaction."""
        left = self._call(lambda: self._client.flush(self._wait_s), "sending records")
        if left:
            raise self._timed_out(f"{left} records")

    def commit(self) -> None:
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                self._client.commit_transaction(self._response_s)
                return
            except (KafkaException, SystemError) as error:
                # A commit can be repeated safely: the log commits a transaction only once.
                is_final = isinstance(error, SystemError) or not error.args[0].retriable()
                if is_final or time.monotonic() > deadline:
                    raise self._translate(error, "committing") from error

    def commit_record(self, record: OutgoingRecord, others: Sequence[OutgoingRecord] = ()) -> int:
        """Write one record in its own transaction, together with ``others``; returns its offset. Its topic must have
        one partition, and only this id may write to it.
        """
        self.begin()
        self.send([record, *others])
        self.flush()
        offset = self._cluster.ends(record.topic, committed=False)[0] - 1
        self.commit()
        return offset

    def abort(self, *, purge: bool = False) -> None:
        """Abort the transaction if possible. Errors are ignored, because the log aborts an open transaction when the
        next owner opens the id. ``purge`` discards records that are in flight; use it only directly before ``close``.
        """
        if self._producer is None:
            return
        with contextlib.suppress(KafkaException, SystemError):
            if purge:
                self._producer.purge()
            self._producer.abort_transaction(self._response_s)

    def close(self) -> None:
        """Discard queued records and close the producer with its threads and connections. Later calls raise
        ``LogError``. Errors are ignored here, because they were raised before.
        """
        if self._producer is None:
            return
        with contextlib.suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.flush(_CLOSE_S)
        # Dropping the last reference closes the producer. ``Producer.close`` would first wait, without a limit, until
        # the log has aborted the transaction. The next owner of the id aborts it anyway.
        self._producer = None

    @property
    def _client(self) -> Producer:
        if self._producer is None:
            raise LogError(f"{self._purpose}: the writer is closed", name="CLIENT_CLOSED")
        return self._producer

    def error(self, cause: KafkaError, doing: str) -> LogError:
        """Return the ``LogError`` for a failed ``Delivery``."""
        return self._translate(KafkaException(cause), doing)

    def _send(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers = (),
        partition: int = -1,
    ) -> None:
        try:
            self._produce(topic, key, value, headers, partition)
        except KafkaException as error:
            raise self._translate(self._cause(error), "sending records") from error

    def _produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers,
        partition: int,
        report: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        """Queue one record. While the queue of the producer is full, wait."""
        deadline = time.monotonic() + self._wait_s
        options: dict[str, Any] = {"headers": list(headers) or None, "partition": partition}
        if report is not None:
            options["on_delivery"] = report
        while True:
            try:
                return self._client.produce(topic, value, key, **options)
            except BufferError:
                if time.monotonic() > deadline:
                    raise self._timed_out("more records") from None
                self._call(lambda: self._client.poll(_POLL_S), "sending records")

    def _cause(self, error: KafkaException) -> KafkaException:
        """Return the reason why a failed transaction refuses records. librdkafka reports that reason only when it tries
        to commit.
        """
        if error.args[0].code() != KafkaError._STATE:
            return error
        try:
            self._client.commit_transaction(self._response_s)
        except KafkaException as cause:
            return cause
        return error

    def _call(self, act: Callable[[], _T], doing: str) -> _T:
        try:
            return act()
        except (KafkaException, SystemError) as error:
            raise self._translate(error, doing) from error

    def _timed_out(self, what: str) -> LogError:
        return from_kafka(
            KafkaError(KafkaError._TIMED_OUT),
            f"{self._purpose}: the log did not accept {what} within {self._wait_s:g} s",
        )

    def _translate(self, error: BaseException, doing: str) -> LogError:
        if isinstance(error, SystemError):
            # The client raised an error during a delivery callback. Python wraps it in a SystemError, or loses it.
            if not isinstance(error.__cause__, KafkaException):
                return LogError(
                    f"{self._purpose}: {doing}: the Kafka client failed",
                    name="CLIENT",
                    detail=str(error.__cause__ or error),
                    retriable=True,
                )
            error = error.__cause__
        cause: KafkaError = error.args[0]
        message = f"{self._purpose}: {doing}"
        if cause.code() == KafkaError._INCONSISTENT:
            # This code means that the log did not respond for some records in time. A refused record has another code.
            return LogError(
                f"{message}: the log did not accept all records in time",
                name="MSG_TIMED_OUT",
                detail=cause.str(),
                retriable=True,
            )
        if cause.code() in _REFUSED:
            open_ms = round((time.monotonic() - self._began) * 1_000)
            return WriterRefused(message, cause, open_ms=open_ms)
        return from_kafka(cause, message)
