"""Partitions in memory, with the interface that the coordinator uses: one list of records and markers, synced up to an
index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.errors import PartitionFenced, StorageError


class OpenTransaction(NamedTuple):
    producer_epoch: int
    first_offset: int
    since_ms: int = 5


class LogEntry(NamedTuple):
    """A record, or a marker if ``committed`` is not ``None``."""

    producer: int
    epoch: int
    value: object = None
    committed: bool | None = None


class Written(NamedTuple):
    durable: asyncio.Future[None] | None


class FakePartition:
    def __init__(self) -> None:
        self.log: list[LogEntry] = []
        self.synced = 0
        self.needs_restart = False
        self.is_full = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def open_transactions(self) -> Mapping[int, OpenTransaction]:
        transactions: dict[int, OpenTransaction] = {}
        for offset, line in enumerate(self.log):
            if line.committed is not None:
                transactions.pop(line.producer, None)
            else:
                transactions[line.producer] = transactions.get(
                    line.producer, OpenTransaction(line.epoch, offset)
                )._replace(producer_epoch=line.epoch)
        return transactions

    def append(self, producer: int, epoch: int, value: object) -> bool:
        """Write a record and sync it; false if a newer epoch is known."""
        if epoch < self._epoch(producer):
            return False
        self.log.append(LogEntry(producer, epoch, value))
        self.sync()
        return True

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
        trusted_ms: int,
    ) -> Written | None:
        newest_epoch = self._epoch(producer_id)
        if newest_epoch > producer_epoch:
            return None
        if newest_epoch == producer_epoch and producer_id not in self.open_transactions():
            return None
        if self.is_full:
            raise StorageError("no space")
        self.log.append(LogEntry(producer_id, producer_epoch, committed=committed))
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((len(self.log), durable))
        return Written(durable)

    def sync(self) -> None:
        self.synced = len(self.log)
        waiting, self._waiting = self._waiting, []
        for _, durable in waiting:
            durable.set_result(None)

    def lose_power(self) -> None:
        """Drop everything that was not synced."""
        del self.log[self.synced :]
        waiting, self._waiting = self._waiting, []
        for _, durable in waiting:
            durable.set_exception(PartitionFenced("gone"))
            durable.exception()

    def committed(self) -> list[object]:
        """Return the values of committed transactions, in the order of their markers."""
        values: list[object] = []
        pending: dict[int, list[object]] = {}
        for line in self.log:
            if line.committed is None:
                pending.setdefault(line.producer, []).append(line.value)
            else:
                ended = pending.pop(line.producer, [])
                values += ended if line.committed else []
        return values

    def _epoch(self, producer: int) -> int:
        return max((line.epoch for line in self.log if line.producer == producer), default=-1)


class FakePartitions:
    def __init__(self, **counts: int) -> None:
        self.by_topic_and_index = {
            (name, index): FakePartition() for name, count in counts.items() for index in range(count)
        }

    def find(self, topic: str, index: int) -> FakePartition | None:
        return self.by_topic_and_index.get((topic, index))

    def all(self) -> Iterable[tuple[str, int, FakePartition]]:
        return [(name, index, partition) for (name, index), partition in self.by_topic_and_index.items()]
