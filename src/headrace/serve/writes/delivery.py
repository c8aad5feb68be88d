"""Records on their way to the log, and what became of each."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.serve.errors import TooBusy
from headrace.serve.writes.incoming import Incoming

__all__ = ["Delivery"]


class Delivery:
    """``done`` once each was delivered or has failed."""

    def __init__(
        self, topic: str, records: Sequence[Incoming], headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        self._topic = topic
        self._records = records
        self._headers = headers
        self._places: list[tuple[int, int] | None] = [None] * len(records)
        self._left = len(records)
        self._lock = threading.Lock()
        self.error: KafkaError | None = None

    @property
    def done(self) -> bool:
        return self._left == 0

    @property
    def places(self) -> list[tuple[int, int]]:
        assert all(self._places)
        return [one for one in self._places if one is not None]

    def send(self, producer: Producer) -> None:
        for number, one in enumerate(self._records):
            headers: list[tuple[str, str | bytes | None]] = [*one.headers, *self._headers]
            try:
                producer.produce(
                    self._topic,
                    key=one.key,
                    value=one.value,
                    headers=headers or None,
                    partition=one.partition,
                    on_delivery=lambda error, message, at=number: self._delivered(error, message, at),  # type: ignore[misc]
                )
            except BufferError:
                self._gave_up(number)
                raise TooBusy(
                    "the log does not take records as fast as they come", hint="send them again in a moment"
                ) from None
            except KafkaException as failed:
                # One that is too large, or of a topic that is gone, is known at once.
                self._gave_up(number)
                self.error = failed.args[0]
                return

    def _gave_up(self, number: int) -> None:
        with self._lock:
            self._left -= len(self._records) - number

    def _delivered(self, error: KafkaError | None, message: Message, at: int) -> None:
        if error is not None:
            self.error = self.error or error
        else:
            self._places[at] = (message.partition() or 0, message.offset() or 0)
        with self._lock:
            self._left -= 1
