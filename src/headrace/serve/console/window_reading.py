"""Windows of a topic's partitions, read all at once and in large pieces."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition

from headrace.client.errors import LogError, from_kafka
from headrace.clock import Clock

__all__ = ["WindowReading"]

_AT_ONCE = 20_000
_POLL_S = 0.05
_PATIENCE_S = 20.0


class WindowReading:
    """What comes behind the end of a window is there too: it is for the caller to leave it."""

    def __init__(self, topic: str, consumer: Consumer, clock: Clock) -> None:
        self._topic = topic
        self._consumer = consumer
        self._clock = clock
        self.windows: dict[int, tuple[int, int]] = {}
        self.open: dict[int, int] = {}
        """By partition that is not read to its end: what is read next."""
        self._heard_at = 0.0

    def begin(self, windows: dict[int, tuple[int, int]]) -> None:
        self._consumer.assign([self._place(number, lo) for number, (lo, _) in windows.items()])
        self.windows = windows
        self.open = {number: lo for number, (lo, _) in windows.items()}
        self._heard_at = self._clock.steady()

    def passed(self) -> dict[int, tuple[int, int]]:
        """What of the windows was read by now."""
        return {number: (lo, self.open.get(number, hi)) for number, (lo, hi) in self.windows.items()}

    def batch(self) -> list[Any]:
        messages = self._consumer.consume(_AT_ONCE, _POLL_S)
        now = self._clock.steady()
        if not messages:
            if now - self._heard_at > _PATIENCE_S:
                told = f"topic {self._topic!r} did not answer for {_PATIENCE_S:.0f} s"
                raise LogError(told, name="TIMED_OUT", retriable=True)
            return []
        self._heard_at = now
        for one in messages:
            error = one.error()
            if error is None:
                continue
            if error.code() != KafkaError._PARTITION_EOF:
                raise from_kafka(error, f"reading topic {self._topic!r}", topic=self._topic)
            # Behind the last record there may be markers, which nobody sees.
            number, at = one.partition() or 0, one.offset() or 0
            if number in self.open:
                self.open[number] = max(self.open[number], at)
        for place in self._consumer.position([self._place(number) for number in self.open]):
            self.open[place.partition] = max(self.open[place.partition], place.offset)
        for number in [number for number, at in self.open.items() if at >= self.windows[number][1]]:
            del self.open[number]
            self._consumer.incremental_unassign([self._place(number)])
        return messages

    def _place(self, number: int, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._topic, number, offset)
