"""Readers of a run: one that reads along while the fault strikes, and one that reads everything back at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bench.faults import calls
from bench.faults.connection import Connection, Gone
from bench.faults.oracle import Ledger, Place, View
from bench.faults.worker import Worker

__all__ = ["ReadingAlong", "content_of", "read_back", "stock_consumer"]

_PASSING = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def stock_consumer(port: int, group: str, settings: Mapping[str, Any] | None = None) -> Consumer:
    """librdkafka, told never to skip anything in silence."""
    return Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 5,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 20,
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 10,
            "log_level": 0,
            **(settings or {}),
        }
    )


class ReadingAlong(Worker):
    """A stock consumer that notes all it is given. Only in ``trimmed`` topics may it be told that it is too late."""

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        places: Sequence[Place],
        trimmed: Iterable[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, port, ledger)
        self._places = list(places)
        self._trimmed = frozenset(trimmed)
        self._settings = settings
        self._next: dict[Place, int] = dict.fromkeys(self._places, 0)

    def work(self) -> None:
        consumer = stock_consumer(self.port, f"along-{self.name}", self._settings)
        try:
            self._assign(consumer)
            while not self.finishing:
                messages = consumer.consume(500, 0.02)
                for message in messages:
                    if message.error() is None:
                        self._take(message)
                for message in messages:
                    if message.error() is not None:
                        self._fault(consumer, message)
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(*place, offset) for place, offset in self._next.items()])

    def _take(self, message: Message) -> None:
        place, offset, value = content_of(message)
        if offset != self._next[place] and place[0] not in self._trimmed:
            self.ledger.object(f"{self.name} was given {place} {offset}, and {self._next[place]} was due")
        self._next[place] = offset + 1
        self.ledger.give(place, offset, value)

    def _fault(self, consumer: Consumer, message: Any) -> None:
        error = message.error()
        if error.code() in _PASSING:
            return
        place = (message.topic(), message.partition())
        if error.code() in _OUT_OF_RANGE and place[0] in self._trimmed:
            self._start_again(consumer, place)
            return
        self.ledger.object(
            f"{self.name} got {error.name()} for {place} at {self._next.get(place)}: {error.str()}"
        )

    def _start_again(self, consumer: Consumer, place: Place) -> None:
        while (connection := self.connect()) is not None:
            with connection:
                try:
                    _, start = calls.list_offset(connection, *place, calls.EARLIEST)
                except Gone:
                    continue
            self._next[place] = max(start, self._next[place])
            self._assign(consumer)
            return


def read_back(port: int, places: Sequence[Place], timeout_s: float = 240.0) -> dict[Place, View]:
    """Everything in the partitions, by a stock client, from the start to the end that there are when it begins.

    Where retention moves the start meanwhile, the view begins at the new one.
    """
    with Connection(port) as connection:
        views = {place: View(place, *_bounds(connection, place)) for place in places}
        left = {place for place, view in views.items() if view.end > view.start}
        consumer = stock_consumer(port, "read-back")
        deadline = time.monotonic() + timeout_s

        try:
            _assign_rest(consumer, views, left)
            while left and time.monotonic() < deadline:
                moved = False
                for message in consumer.consume(5000, 0.05):
                    error = message.error()
                    if error is None:
                        place, offset, value = content_of(message)
                        if offset < views[place].end:
                            views[place].values[offset] = value
                        if offset >= views[place].end - 1:
                            left.discard(place)
                    elif error.code() in _OUT_OF_RANGE:
                        place = (message.topic() or "", message.partition() or 0)
                        start, _ = _bounds(connection, place)
                        # Two may come for one place: the second was on its way when the first was looked into.
                        asked = message.offset()
                        if asked is None or asked >= start:
                            raise KafkaException(error)
                        if start > views[place].start:
                            views[place] = View(place, start, max(start, views[place].end))
                            moved = True
                        if start >= views[place].end:
                            left.discard(place)
                    elif error.code() not in _PASSING:
                        raise KafkaException(error)
                if moved:
                    _assign_rest(consumer, views, left)
        finally:
            consumer.close()
    return views


def _assign_rest(consumer: Consumer, views: Mapping[Place, View], left: Iterable[Place]) -> None:
    """Go on behind what has been read of each."""
    consumer.assign(
        [
            TopicPartition(*place, max(views[place].values, default=views[place].start - 1) + 1)
            for place in left
        ]
    )


def _bounds(connection: Connection, place: Place) -> tuple[int, int]:
    start_error, start = calls.list_offset(connection, *place, calls.EARLIEST)
    end_error, end = calls.list_offset(connection, *place, calls.LATEST)
    if start_error or end_error:
        raise AssertionError(f"the bounds of {place} are refused: errors {start_error} and {end_error}")
    return start, end


def content_of(message: Message) -> tuple[Place, int, bytes]:
    topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return (topic, partition), offset, bytes(value or b"")
