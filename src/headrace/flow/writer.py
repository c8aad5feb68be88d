"""The one producer that writes a flow: a batch's rows, its side records and its progress record are one transaction.

``transactional.id`` is the flow, so that whoever opens it fences whoever had it before: a driver that was paused and
comes back can write nothing, whatever it believes. An error inside a batch aborts the transaction, and the batch runs
again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.errors import HeadraceError
from headrace.flow.errors import ProducerFenced, RowTooLarge

__all__ = ["Side", "Writer"]

# A new producer can go on after each of these; whether it may, the record of the owner says. The last two are what a
# log answers that has forgotten an idle producer; the first is how librdkafka repeats any of the others.
_FENCED = {
    KafkaError._FATAL,
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
_ANSWER_S = 30.0
_FLUSH_S = 120.0


@dataclass(frozen=True, slots=True)
class Side:
    """A record beside the rows: one late, one dead, or the progress."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Writer:
    """Opened once for a run of the flow; after any error it must be opened anew."""

    def __init__(self, cluster: Cluster, flow: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.flow = flow
        self._producer: Producer = cluster.producer(
            {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                # The topics say how large a record may be.
                "message.max.bytes": 1_000_000_000,
                "compression.type": "lz4",
                "linger.ms": 5,
                "batch.size": 1_000_000,
                "batch.num.messages": 50_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 262_144,
                "retry.backoff.ms": 5,
                "retry.backoff.max.ms": 500,
            }
        )
        self._largest = ("", 0, "")
        """Topic, bytes and key of the largest row of the transaction."""
        self._began = time.monotonic()
        self._guarded(lambda: self._producer.init_transactions(_ANSWER_S), "taking the flow over")

    def begin(self) -> None:
        self._began = time.monotonic()
        self._largest = ("", 0, "")
        self._guarded(self._producer.begin_transaction, "beginning a transaction")

    def rows(self, topic: str, keys: Sequence[str], values: Sequence[str | None]) -> None:
        """Into the queue, in their order; ``flush`` waits until the log has them."""
        self._note_largest(topic, keys, values)
        produce = self._producer.produce
        for key, value in zip(keys, values, strict=True):
            try:
                produce(topic, value, key)
            except (BufferError, KafkaException):
                self._produce_patiently(topic, value, key, None)

    def _note_largest(self, topic: str, keys: Sequence[str], values: Sequence[str | None]) -> None:
        sizes = [len(value) if value else 0 for value in values]
        largest = max(range(len(sizes)), key=sizes.__getitem__, default=None)
        if largest is not None and sizes[largest] > self._largest[1]:
            size = len((values[largest] or "").encode())
            self._largest = (topic, size, keys[largest])

    def sides(self, records: Iterable[Side]) -> None:
        for one in records:
            headers: Any = list(one.headers) or None
            self._produce_patiently(one.topic, one.value, one.key, headers)

    def flush(self) -> None:
        """All of the transaction so far is in the log, though nobody who reads committed records sees it."""
        left = self._guarded(lambda: self._producer.flush(_FLUSH_S), "sending a batch")
        if left:
            raise from_kafka(
                KafkaError(KafkaError._TIMED_OUT), f"{left} records of flow {self.flow} were not taken"
            )

    def commit(self) -> None:
        deadline = time.monotonic() + _FLUSH_S
        while True:
            try:
                self._producer.commit_transaction(_ANSWER_S)
                return
            except KafkaException as error:
                # The same commit may be asked for again: it happens once, or is said to have happened.
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise self._told(error, "committing a batch") from error

    def commit_alone(self, cluster: Cluster, record: Side) -> int:
        """One record as a transaction, into a topic of one partition that only the flow writes; returns its offset."""
        self.begin()
        self.sides([record])
        self.flush()
        offset = cluster.ends(record.topic, committed=False)[0] - 1
        self.commit()
        return offset

    def abort(self) -> None:
        """As well as it goes: whoever opens the flow next has the log abort what is left open."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(_ANSWER_S)
        except KafkaException:
            return

    def close(self) -> None:
        """A producer that the log refuses fails here too, and the reason has been raised already."""
        with contextlib.suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(1.0)

    def _produce_patiently(
        self, topic: str, value: bytes | str | None, key: bytes | str | None, headers: Any
    ) -> None:
        """The queue is as large as it may be; there is room when the log has taken something."""
        deadline = time.monotonic() + _FLUSH_S
        while True:
            try:
                return self._producer.produce(topic, value, key, headers=headers)
            except BufferError:
                if time.monotonic() > deadline:
                    error = KafkaError(KafkaError._TIMED_OUT)
                    raise from_kafka(error, f"the log takes nothing more of flow {self.flow}") from None
                self._producer.poll(0.05)
            except KafkaException as error:
                raise self._told(self._cause(error), "sending a batch") from error

    def _cause(self, error: KafkaException) -> KafkaException:
        """A transaction that has failed takes nothing more, and does not say why; its commit does."""
        if error.args[0].code() != KafkaError._STATE:
            return error
        try:
            self._producer.commit_transaction(_ANSWER_S)
        except KafkaException as cause:
            return cause
        return error

    def _guarded(self, act: Any, doing: str) -> Any:
        try:
            return act()
        except KafkaException as error:
            raise self._told(error, doing) from error

    def _told(self, error: KafkaException, doing: str) -> HeadraceError:
        if error.args[0].code() == KafkaError._INCONSISTENT:
            # What the log refuses is the error itself; this is what it has not answered in time.
            return LogError(
                f"flow {self.flow}: {doing}: the log has not taken all records in time",
                name="MSG_TIMED_OUT",
                detail=error.args[0].str(),
                retriable=True,
            )
        if error.args[0].code() in _FENCED:
            open_ms = round((time.monotonic() - self._began) * 1_000)
            return ProducerFenced(self.flow, open_ms=open_ms, detail=f"{doing}: {error.args[0].str()}")
        if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return self._too_large()
        return from_kafka(error, f"flow {self.flow}: {doing}")

    def _too_large(self) -> RowTooLarge:
        topic, size, key = self._largest
        return RowTooLarge(
            f"flow {self.flow}: the log refuses a batch of rows for {topic}, because one is too large",
            detail=f"the largest has {size} bytes, with key {key!r:.100}",
            hint=f"derive smaller rows, or: headrace topic alter {topic} --set max.message.bytes={size * 2}",
        )
