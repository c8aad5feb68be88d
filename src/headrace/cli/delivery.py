"""Sends records to topics and tracks each record until a broker acknowledges or rejects it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.cli.errors import CliError, DeliveryFailed
from headrace.cli.format.printer import compile_printer
from headrace.cli.kafka import describe_topics, translate
from headrace.cli.record import Record, record_of
from headrace.cli.session import Session

__all__ = ["Delivery"]

_QUEUE_WAIT_S = 0.5
_INTERRUPTED_FLUSH_S = 5.0


class Delivery:
    def __init__(
        self,
        session: Session,
        output: str,
        *,
        compression: str,
        acks: str,
        timeout_s: float,
        may_create: bool,
    ) -> None:
        self._session = session
        self._printer = compile_printer(output) if output else None
        self._may_create = may_create
        self._timeout_s = timeout_s
        self._checked_topics: set[str] = set()
        self._producer = session.cluster().producer(
            {
                "acks": acks,
                # librdkafka requires acks=all for idempotence.
                "enable.idempotence": acks == "all",
                "compression.type": compression,
                "linger.ms": 5,
                "message.timeout.ms": round(timeout_s * 1_000),
            }
        )
        self.sent = 0
        self.delivered = 0
        self._first_failure: KafkaError | None = None
        self._failed_topic = ""

    def poll(self) -> None:
        self._producer.poll(0)
        if self._printer is not None:
            self._session.out.flush()

    def send_all(self, records: Iterable[Record]) -> None:
        """Return when every record is acknowledged. If a record fails, raise an error with the counts."""
        try:
            for record in records:
                self._send(record)
                if self._first_failure is not None:
                    self._producer.purge(in_queue=True, in_flight=False, blocking=False)
                    break
            self._producer.flush(self._timeout_s + 5)
        except (KeyboardInterrupt, CliError):
            self._producer.flush(_INTERRUPTED_FLUSH_S)
            self._session.out.flush()
            if self.sent:
                self._session.out.note(f"{self.delivered} of {self.sent} records were delivered")
            raise
        self._session.out.flush()
        self._report()

    def _send(self, record: Record) -> None:
        if record.topic not in self._checked_topics:
            self._check_topic(record.topic)
        headers: list[tuple[str, str | bytes | None]] = [*record.headers]
        extra: dict[str, Any] = {}
        if record.partition >= 0:
            extra["partition"] = record.partition
        if record.timestamp >= 0:
            extra["timestamp"] = record.timestamp
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=headers or None,
                    on_delivery=self._on_delivery,
                    **extra,
                )
                break
            except BufferError:
                # librdkafka's queue is full; wait for acknowledgements.
                self._producer.poll(_QUEUE_WAIT_S)
            except KafkaException as error:
                self._on_failure(error.args[0], record.topic)
                break
        self.sent += 1
        self._producer.poll(0)

    def _check_topic(self, topic: str) -> None:
        """Fail if the topic is missing. Without this check, the producer's metadata request could create the topic."""
        if not self._may_create:
            describe_topics(self._session, [topic])
        self._checked_topics.add(topic)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._on_failure(error, message.topic())
            return
        self.delivered += 1
        if self._session.out.as_json:
            record = record_of(message)
            self._session.out.json_line(
                {
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                }
            )
        elif self._printer is not None:
            self._session.out.write(self._printer(record_of(message), self.delivered))

    def _on_failure(self, error: KafkaError, topic: str) -> None:
        if self._first_failure is None:
            self._first_failure, self._failed_topic = error, topic

    def _report(self) -> None:
        if self.delivered == self.sent:
            self._session.out.note(f"{self.delivered} record{'s' * (self.delivered != 1)} delivered")
            return
        error = self._first_failure
        failed = self.sent - self.delivered
        counts = f"{failed} of {self.sent} records were not delivered, {self.delivered} were delivered"
        if error is None:
            raise DeliveryFailed(f"{counts}: no response within {self._timeout_s:g} s")
        if error.code() == KafkaError._MSG_TIMED_OUT:
            raise DeliveryFailed(
                f"{counts}: not acknowledged within {self._timeout_s:g} s",
                detail=f"{error.str()}; a record without an acknowledgement may still have been written",
                hint="check the broker and its disk, or wait longer with --delivery-timeout",
            )
        cause = translate(
            self._session, error, f"writing to {self._failed_topic!r}", topic=self._failed_topic
        )
        raise DeliveryFailed(f"{counts}: {error.str()}", detail=cause.message, hint=cause.hint)
