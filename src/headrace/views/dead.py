"""Dead letters: what does not fit, as it came, headers included, with its place and the reason, in ``<view>.dead``.

They are in the log before the view's position moves past them. A follower that ends in between reads the same records
again, and so may write a dead letter again; none is lost. A rebuild reads everything again, dead letters included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_letters
from headrace.client.errors import from_kafka
from headrace.model.errors import ValueDoesNotFit
from headrace.views.errors import DeadLetterRefused

__all__ = ["DeadLetter", "DeadLetters"]

_PREFIX = "__headrace.errors."
_SENT_BYTES_MAX = 1_000_000_000
_REASON_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    message: Message
    reason: ValueDoesNotFit

    def headers(self) -> list[tuple[str, str | bytes | None]]:
        told = {
            "exception": type(self.reason).__name__,
            "message": self.reason.message[:_REASON_CHARS_MAX],
            "topic": self.message.topic(),
            "partition": self.message.partition(),
            "offset": self.message.offset(),
        }
        given: Iterable[tuple[str, str | bytes | None]] = self.message.headers() or ()  # type: ignore[assignment]
        # One that was a letter itself says what it says of this view only.
        own = [one for one in given if not one[0].startswith(_PREFIX)]
        return [
            *own,
            *((f"{_PREFIX}{name}", str(one).encode("utf-8", "replace")) for name, one in told.items()),
        ]


class DeadLetters:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._producer: Producer | None = None

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """They are in the log when this returns."""
        producer = self._producer or self._open(letters[0].message.topic() or "")
        failed: list[KafkaError] = []
        for letter in letters:
            self._send(producer, letter, failed)
        producer.flush(self._cluster.timeout_s)
        if failed or len(producer):
            error = failed[0] if failed else KafkaError(KafkaError._TIMED_OUT)
            # What is still under way is taken back: it is sent again with the records that are read again.
            producer.purge()
            producer.flush(self._cluster.timeout_s)
            told = from_kafka(error, f"writing {len(letters)} dead letters to {self._topic!r}")
            if told.retriable:
                raise told
            raise DeadLetterRefused(
                told.message, hint=f"nothing was passed over; see: headrace topic describe {self._topic}"
            )

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
        ensure_letters(self._cluster, self._topic, [source])
        self._producer = self._cluster.producer(
            {
                "enable.idempotence": True,
                "message.max.bytes": _SENT_BYTES_MAX,
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
