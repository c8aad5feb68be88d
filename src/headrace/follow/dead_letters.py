"""Writes dead letters: copies of records that do not fit the schema of a view.

A dead letter is written to the topic ``<view>.dead``. It has the unchanged key, value and headers of the record, and
the headers of ``headrace.model.rejection``.

The follower writes a dead letter to the log before it moves the view's position past the record. If it stops in
between, it reads the record again and may write the dead letter twice, but never loses it. A rebuild reads all records
again, and so writes the dead letters of all records that it rejects again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_dead_letter_topic
from headrace.client.errors import from_kafka
from headrace.client.records import write
from headrace.model.rejection import BuildRecord, Rejection, without_error_headers
from headrace.stores.errors import DeadLetterRefused

__all__ = ["DeadLetter", "DeadLetters"]

_MESSAGE_BYTES_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    message: Message
    rejection: Rejection

    def headers(self) -> list[tuple[str, str | bytes | None]]:
        headers: Iterable[tuple[str, bytes | None]] = self.message.headers() or ()  # type: ignore[assignment]
        return [*without_error_headers(headers), *self.rejection.headers()]


class DeadLetters:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._producer: Producer | None = None

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Write the dead letters, and wait until the log has acknowledged all of them."""
        producer = self._producer or self._open(letters[0].message.topic() or "")
        failed: list[KafkaError] = []
        for letter in letters:
            self._send(producer, letter, failed)
        producer.flush(self._cluster.timeout_s)
        if failed or len(producer):
            error = failed[0] if failed else KafkaError(KafkaError._TIMED_OUT)
            # Discard the queued letters: the follower reads these records again and sends the letters again.
            producer.purge()
            producer.flush(self._cluster.timeout_s)
            translated = from_kafka(error, f"writing {len(letters)} dead letters to {self._topic!r}")
            if translated.retriable:
                raise translated
            raise DeadLetterRefused(
                translated.message,
                hint="the view waits at these records; check the settings of the topic with:"
                f" headrace topic describe {self._topic}",
            )

    def note_build(self, record: BuildRecord) -> bool:
        """Write a build record, if the view has dead letters. Return whether it was written."""
        if self._cluster.topic(self._topic) is None:
            return False
        if self._cluster.starts(self._topic) == self._cluster.ends(self._topic):
            return False
        write(self._cluster, self._topic, None, None, "writing a build record", headers=[record.header()])
        return True

    def _send(self, producer: Producer, letter: DeadLetter, failed: list[KafkaError]) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        while True:
            try:
                producer.produce(
                    self._topic,
                    value=letter.message.value(),
                    key=letter.message.key(),
                    headers=letter.headers(),
                    on_delivery=delivered,
                )
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                failed.append(error.args[0])
                return
            else:
                return

    def _open(self, source: str) -> Producer:
        ensure_dead_letter_topic(self._cluster, self._topic, [source])
        self._producer = self._cluster.producer(
            {
                "enable.idempotence": True,
                "message.max.bytes": _MESSAGE_BYTES_MAX,
                "message.timeout.ms": int(self._cluster.timeout_s * 1_000),
                "linger.ms": 0,
            }
        )
        return self._producer

    def close(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1.0)
            self._producer = None
