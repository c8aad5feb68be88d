"""A record on its way to the log, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.ops.dead.letter import Header, Place

__all__ = ["Sending"]

_POLL_S = 0.1


class Sending:
    def __init__(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> None:
        self._to = (topic, partition)
        self._key = key
        self._value = value
        self._headers = headers
        self.place: Place | None = None
        self.error: KafkaError | None = None

    def send(self, producer: Producer) -> None:
        """``partition`` -1 leaves it to the key."""
        topic, partition = self._to
        where = {} if partition < 0 else {"partition": partition}
        headers: list[tuple[str, str | bytes | None]] = [*self._headers]
        while True:
            try:
                producer.produce(
                    topic,
                    key=self._key,
                    value=self._value,
                    headers=headers or None,
                    on_delivery=self._delivered,
                    **where,  # type: ignore[arg-type]
                )
            except BufferError:
                producer.poll(_POLL_S)
            except KafkaException as failed:
                # One that is too large, or of a topic that is gone, is known at once.
                self.error = failed.args[0]
                return
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.error = error
        else:
            self.place = Place(message.topic() or "", message.partition() or 0, message.offset() or 0)
