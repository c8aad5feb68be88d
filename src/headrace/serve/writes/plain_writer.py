"""Writes without an Idempotency-Key. Kafka's idempotent producer writes each record at most once, but the records of a
request are not atomic.

A caller that gets no response cannot know which records were written. Repeating the request can create duplicates.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.clock import Clock
from headrace.serve.errors import OutcomeUnknown, TooBusy
from headrace.serve.writes.records import WriteRecord, WriteResult

__all__ = ["PlainWriter"]

_POLL_S = 0.1
_QUEUED_MAX = 100_000


class PlainWriter:
    """Thread-safe. A background thread polls the producer for delivery reports."""

    def __init__(self, cluster: Cluster, clock: Clock, write_s: float) -> None:
        self._clock = clock
        self._write_s = write_s
        self._producer = cluster.producer(
            {
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": int(write_s * 1_000),
                "queue.buffering.max.messages": _QUEUED_MAX,
            }
        )
        self._delivered = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="serve writes", daemon=True)
        self._thread.start()

    def write(self, topic: str, topic_id: str, records: Sequence[WriteRecord]) -> WriteResult:
        delivery = _Delivery(topic, records)
        deadline = self._clock.steady() + self._write_s
        delivery.send(self._producer)
        with self._delivered:
            while not delivery.done and self._clock.steady() < deadline:
                self._delivered.wait(_POLL_S)
        if delivery.error is not None:
            raise from_kafka(delivery.error, f"writing to topic {topic!r}", topic=topic)
        if not delivery.done:
            raise OutcomeUnknown(
                f"the log did not confirm the records within {self._write_s:g} s",
                hint="read the topic to check whether they were written; if you send an Idempotency-Key, you can repeat"
                " a request",
            )
        return WriteResult(topic, topic_id, delivery.offsets)

    def _poll(self) -> None:
        while not self._stop.is_set():
            if self._producer.poll(_POLL_S):
                with self._delivered:
                    self._delivered.notify_all()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5 * _POLL_S + 1)
        self._producer.flush(1)


class _Delivery:
    """The records of one request. ``done`` is true once every record is delivered or has failed."""

    def __init__(self, topic: str, records: Sequence[WriteRecord]) -> None:
        self._topic = topic
        self._records = records
        self._offsets: list[tuple[int, int] | None] = [None] * len(records)
        self._pending = len(records)
        self._lock = threading.Lock()
        self.error: KafkaError | None = None

    @property
    def done(self) -> bool:
        return self._pending == 0

    @property
    def offsets(self) -> list[tuple[int, int]]:
        assert all(self._offsets)
        return [offset for offset in self._offsets if offset is not None]

    def send(self, producer: Producer) -> None:
        for index, record in enumerate(self._records):
            headers: list[tuple[str, str | bytes | None]] = [*record.headers]
            try:
                producer.produce(
                    self._topic,
                    key=record.key,
                    value=record.value,
                    headers=headers or None,
                    partition=record.partition,
                    on_delivery=lambda error, message, at=index: self._on_delivery(error, message, at),  # type: ignore[misc]
                )
            except BufferError:
                self._skip_from(index)
                raise TooBusy(
                    f"too many records are waiting to be written (limit {_QUEUED_MAX})",
                    hint="repeat the request in a moment",
                ) from None
            except KafkaException as error:
                # librdkafka immediately rejects a record that is too large or whose topic was deleted.
                self._skip_from(index)
                self.error = error.args[0]
                return

    def _skip_from(self, index: int) -> None:
        with self._lock:
            self._pending -= len(self._records) - index

    def _on_delivery(self, error: KafkaError | None, message: Message, index: int) -> None:
        if error is not None:
            self.error = self.error or error
        else:
            self._offsets[index] = (message.partition() or 0, message.offset() or 0)
        with self._lock:
            self._pending -= 1
