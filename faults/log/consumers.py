"""The readers of a run: ``LiveReader`` reads while the fault happens, ``read_back`` reads everything at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from faults.log.client_thread import ClientThread
from faults.log.oracle import Ledger, PartitionId, PartitionView
from faults.protocol import calls
from faults.protocol.connection import Connection, Gone

__all__ = ["LiveReader", "partition_offset_value", "read_back", "stock_consumer"]

_TRANSIENT = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def stock_consumer(port: int, group: str, settings: Mapping[str, Any] | None = None) -> Consumer:
    """Return a librdkafka consumer that reports an offset out of range instead of skipping it."""
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


class LiveReader(ClientThread):
    """A stock consumer that records everything it receives. Only for topics in ``trimmed`` may the broker respond that
    an offset is too old.
    """

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        partition_ids: Sequence[PartitionId],
        trimmed: Iterable[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, port, ledger)
        self._partition_ids = list(partition_ids)
        self._trimmed = frozenset(trimmed)
        self._settings = settings
        self._next: dict[PartitionId, int] = dict.fromkeys(self._partition_ids, 0)

    def work(self) -> None:
        consumer = stock_consumer(self.port, f"live-{self.name}", self._settings)
        try:
            self._assign(consumer)
            while not self.finishing:
                messages = consumer.consume(500, 0.02)
                for message in messages:
                    if message.error() is None:
                        self._record_message(message)
                for message in messages:
                    if message.error() is not None:
                        self._handle_error(consumer, message)
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign(
            [TopicPartition(*partition_id, offset) for partition_id, offset in self._next.items()]
        )

    def _record_message(self, message: Message) -> None:
        partition_id, offset, value = partition_offset_value(message)
        if offset != self._next[partition_id] and partition_id[0] not in self._trimmed:
            self.ledger.report_problem(
                f"{self.name} received {partition_id} {offset} instead of {self._next[partition_id]}"
            )
        self._next[partition_id] = offset + 1
        self.ledger.record_delivery(partition_id, offset, value)

    def _handle_error(self, consumer: Consumer, message: Any) -> None:
        error = message.error()
        if error.code() in _TRANSIENT:
            return
        partition_id = (message.topic(), message.partition())
        if error.code() in _OUT_OF_RANGE and partition_id[0] in self._trimmed:
            self._seek_to_start(consumer, partition_id)
            return
        self.ledger.report_problem(
            f"{self.name} received {error.name()} for {partition_id} at {self._next.get(partition_id)}: {error.str()}"
        )

    def _seek_to_start(self, consumer: Consumer, partition_id: PartitionId) -> None:
        while (connection := self.connect()) is not None:
            with connection:
                try:
                    _, start = calls.list_offset(connection, *partition_id, calls.EARLIEST)
                except Gone:
                    continue
            self._next[partition_id] = max(start, self._next[partition_id])
            self._assign(consumer)
            return


def read_back(
    port: int, partition_ids: Sequence[PartitionId], timeout_s: float = 240.0
) -> dict[PartitionId, PartitionView]:
    """Read the partitions with a stock client, from the start to the end at the time of the call. If retention moves
    the start meanwhile, the result begins at the new start.
    """
    with Connection(port) as connection:
        views = {
            partition_id: PartitionView(partition_id, *_bounds(connection, partition_id))
            for partition_id in partition_ids
        }
        unfinished = {partition_id for partition_id, view in views.items() if view.end > view.start}
        consumer = stock_consumer(port, "read-back")
        deadline = time.monotonic() + timeout_s

        try:
            _assign_rest(consumer, views, unfinished)
            while unfinished and time.monotonic() < deadline:
                start_moved = False
                for message in consumer.consume(5000, 0.05):
                    error = message.error()
                    if error is None:
                        partition_id, offset, value = partition_offset_value(message)
                        if offset < views[partition_id].end:
                            views[partition_id].values[offset] = value
                        if offset >= views[partition_id].end - 1:
                            unfinished.discard(partition_id)
                    elif error.code() in _OUT_OF_RANGE:
                        partition_id = (message.topic() or "", message.partition() or 0)
                        start, _ = _bounds(connection, partition_id)
                        # Two errors can arrive for one offset: the second was in flight when the first was handled.
                        expected_offset = message.offset()
                        if expected_offset is None or expected_offset >= start:
                            raise KafkaException(error)
                        if start > views[partition_id].start:
                            views[partition_id] = PartitionView(
                                partition_id, start, max(start, views[partition_id].end)
                            )
                            start_moved = True
                        if start >= views[partition_id].end:
                            unfinished.discard(partition_id)
                    elif error.code() not in _TRANSIENT:
                        raise KafkaException(error)
                if start_moved:
                    _assign_rest(consumer, views, unfinished)
        finally:
            consumer.close()
    return views


def _assign_rest(
    consumer: Consumer, views: Mapping[PartitionId, PartitionView], unfinished: Iterable[PartitionId]
) -> None:
    """Continue after the last record that was read from each partition."""
    consumer.assign(
        [
            TopicPartition(
                *partition_id, max(views[partition_id].values, default=views[partition_id].start - 1) + 1
            )
            for partition_id in unfinished
        ]
    )


def _bounds(connection: Connection, partition_id: PartitionId) -> tuple[int, int]:
    start_error, start = calls.list_offset(connection, *partition_id, calls.EARLIEST)
    end_error, end = calls.list_offset(connection, *partition_id, calls.LATEST)
    if start_error or end_error:
        raise AssertionError(
            f"the bounds of {partition_id} cannot be read: errors {start_error} and {end_error}"
        )
    return start, end


def partition_offset_value(message: Message) -> tuple[PartitionId, int, bytes]:
    topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return (topic, partition), offset, bytes(value or b"")
