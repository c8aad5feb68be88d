"""Partitions in memory, as the coordinator sees them: records and markers in one line, synced up to some point."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.errors import PartitionFenced, StorageError


class Open(NamedTuple):
    producer_epoch: int
    first_offset: int
    since_ms: int = 5


class Line(NamedTuple):
    """A record, or a marker if ``committed`` is not ``None``."""

    producer: int
    epoch: int
    value: object = None
    committed: bool | None = None


class Written(NamedTuple):
    durable: asyncio.Future[None] | None


class FakePartition:
    def __init__(self) -> None:
        self.log: list[Line] = []
        self.synced = 0
        self.is_lost = False
        self.is_full = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def open_transactions(self) -> Mapping[int, Open]:
        found: dict[int, Open] = {}
        for offset, line in enumerate(self.log):
            if line.committed is not None:
                found.pop(line.producer, None)
            else:
                found[line.producer] = found.get(line.producer, Open(line.epoch, offset))._replace(
                    producer_epoch=line.epoch
                )
        return found

    def append(self, producer: int, epoch: int, value: object) -> bool:
        """Write a record and sync it; false if a newer epoch is known."""
        if epoch < self._epoch(producer):
            return False
        self.log.append(Line(producer, epoch, value))
        self.sync()
        return True

    def mark(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
        trusted_ms: int,
    ) -> Written | None:
        known = self._epoch(producer_id)
        if known > producer_epoch:
            return None
        if known == producer_epoch and producer_id not in self.open_transactions():
            return None
        if self.is_full:
            raise StorageError("no space")
        self.log.append(Line(producer_id, producer_epoch, committed=committed))
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((len(self.log), durable))
        return Written(durable)

    def sync(self) -> None:
        self.synced = len(self.log)
        waiting, self._waiting = self._waiting, []
        for _, durable in waiting:
            durable.set_result(None)

    def lose_power(self) -> None:
        """Only what was synced is left."""
        del self.log[self.synced :]
        waiting, self._waiting = self._waiting, []
        for _, durable in waiting:
            durable.set_exception(PartitionFenced("gone"))
            durable.exception()

    def committed(self) -> list[object]:
        """What a reader of committed records is given in the end."""
        seen: list[object] = []
        pending: dict[int, list[object]] = {}
        for line in self.log:
            if line.committed is None:
                pending.setdefault(line.producer, []).append(line.value)
            else:
                ended = pending.pop(line.producer, [])
                seen += ended if line.committed else []
        return seen

    def _epoch(self, producer: int) -> int:
        return max((line.epoch for line in self.log if line.producer == producer), default=-1)


class FakePartitions:
    def __init__(self, **counts: int) -> None:
        self.by_place = {
            (name, index): FakePartition() for name, count in counts.items() for index in range(count)
        }

    def find(self, topic: str, index: int) -> FakePartition | None:
        return self.by_place.get((topic, index))

    def all(self) -> Iterable[tuple[str, int, FakePartition]]:
        return [(name, index, one) for (name, index), one in self.by_place.items()]
