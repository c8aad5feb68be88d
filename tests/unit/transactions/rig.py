"""A transaction coordinator beside a group coordinator on one journal, with a clock that is driven by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.groups import GroupCoordinator, GroupSettings
from headrace.broker.transactions import EndAnswer, InitAnswer, TransactionCoordinator, TransactionSettings
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode
from tests.unit.groups.journal import MemoryJournal
from tests.unit.groups.rig import DrivenClock, Topics, settle

from .partitions import FakePartition, FakePartitions

__all__ = ["MINUTE_MS", "NONE", "Producer", "Rig", "both", "settle"]

MINUTE_MS = 60_000
NONE = ErrorCode.NONE
both = pytest.mark.parametrize("second", [False, True], ids=["first protocol", "second protocol"])


class Ids:
    def __init__(self) -> None:
        self.given = 1_000
        self.fails = False

    async def next(self) -> int:
        if self.fails:
            raise StorageError("no space")
        self.given += 1
        return self.given


class Rig:
    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.clock = DrivenClock()
        self.journal = MemoryJournal()
        self.topics = Topics(orders=2, payments=1)
        self.partitions = FakePartitions(orders=2, payments=1)
        self.ids = Ids()
        self.starts = 0
        self.faults: list[dict[str, Any]] = []
        self._patience = asyncio.timeout(120)
        self._open()

    def _open(self) -> None:
        self.groups = GroupCoordinator(
            settings=GroupSettings(),
            journal=self.journal,
            topics=self.topics,
            clock=self.clock,
            trusted_ms=self.clock.now_ms,
        )
        self.transactions = TransactionCoordinator(
            settings=self.settings,
            ledger=self.groups.ledger,
            partitions=self.partitions,
            topics=self.topics,
            producer_ids=self.ids,
            clock=self.clock,
            stamp_ms=self.clock.now_ms,
            trusted_ms=self.clock.now_ms,
            coordinator_epoch=self.starts,
        )

    async def _start(self) -> None:
        starting = asyncio.ensure_future(self.transactions.recovered())
        await self.groups.start()
        while not starting.done():
            await settle()
            for _, _, partition in self.partitions.all():
                partition.sync()
        await starting

    async def __aenter__(self) -> Rig:
        await self._patience.__aenter__()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))
        await self._start()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self.journal.release()
        await self.transactions.stop()
        await self.groups.stop()
        await settle()
        await self._patience.__aexit__(*raised)
        assert not self.faults

    async def crash(self, *, with_last_write: bool = False, power: bool = False) -> None:
        """The process is killed and another started; with ``power``, what was not synced is lost as well."""
        found = self.journal.killed(with_last_write=with_last_write)
        await self.transactions.stop()
        await self.groups.stop()
        if power:
            for _, _, partition in self.partitions.all():
                partition.lose_power()
        self.journal = found
        self.clock.steady_s += 1
        self.starts += 1
        self._open()
        await self._start()

    async def advance(self, seconds: float) -> None:
        """Let time pass as it does for a process that is not held up."""
        await settle()
        left = seconds
        while left > 0:
            step = min(left, 0.5)
            left -= step
            self.clock.steady_s += step
            self.clock.wall_ms += int(step * 1000)
            self.transactions.tick()
            await settle()

    def sync(self) -> None:
        for _, _, partition in self.partitions.all():
            partition.sync()

    def partition(self, topic: str = "orders", index: int = 0) -> FakePartition:
        found = self.partitions.find(topic, index)
        assert found is not None
        return found

    def committed(self) -> tuple[list[object], list[object]]:
        """What readers of committed records see in the two partitions of ``orders``."""
        return self.partition().committed(), self.partition("orders", 1).committed()

    def state(self, transactional_id: str = "x") -> str | None:
        found = self.transactions.describe(transactional_id)
        return None if isinstance(found, ErrorCode) else found.state

    def offset(self, group: str = "g", topic: str = "orders", partition: int = 0) -> int | None:
        row = self.groups.fetch(group, topic, partition)
        return None if row is None else row.offset


class Producer:
    """One client. It knows what it was told, and nothing else. ``second`` is whether it speaks the second protocol."""

    def __init__(self, rig: Rig, transactional_id: str = "x", *, second: bool = True) -> None:
        self.rig = rig
        self.id = transactional_id
        self.second = second
        self.producer = -1
        self.epoch = -1

    @classmethod
    async def started(cls, rig: Rig, transactional_id: str = "x", *, second: bool = True) -> Producer:
        """One that has taken its id."""
        producer = cls(rig, transactional_id, second=second)
        await producer.init()
        return producer

    @property
    def who(self) -> tuple[str, int, int]:
        return self.id, self.producer, self.epoch

    async def init(self, *, own: bool = False, timeout_ms: int = MINUTE_MS) -> InitAnswer:
        mine = (self.producer, self.epoch) if own else (-1, -1)
        answer = await self.rig.transactions.init(self.id, timeout_ms, *mine)
        if answer.error is ErrorCode.NONE:
            self.producer, self.epoch = answer.producer_id, answer.epoch
        return answer

    def write(self, value: object, topic: str = "orders", index: int = 0) -> ErrorCode:
        """As a client does: the first protocol announces a partition, the second just writes."""
        if not self.second:
            error = self.rig.transactions.add_partitions(*self.who, [(topic, index)])
            if error is not ErrorCode.NONE:
                return error
        error = self.rig.transactions.admit(*self.who, topic, index, adds=self.second)
        if error is not ErrorCode.NONE:
            return error
        written = self.rig.partition(topic, index).append(self.producer, self.epoch, value)
        return ErrorCode.NONE if written else ErrorCode.INVALID_PRODUCER_EPOCH

    async def commit_offset(self, offset: int, group: str = "g", topic: str = "orders") -> ErrorCode:
        transactions = self.rig.transactions
        if not self.second:
            error = transactions.add_group(*self.who, group)
            if error is not ErrorCode.NONE:
                return error
        (error,) = await self.rig.groups.commit_in(
            self.id,
            group,
            [(topic, 0, offset, -1, "")],
            lambda: transactions.add_group(*self.who, group, adds=self.second),
        )
        return error

    async def end(self, *, commit: bool) -> EndAnswer:
        answer = await self.rig.transactions.end(*self.who, commit=commit, bumps=self.second)
        if answer.error is ErrorCode.NONE and self.second:
            self.producer, self.epoch = answer.producer_id, answer.epoch
        return answer

    async def commit(self) -> ErrorCode:
        return (await self.end(commit=True)).error

    async def abort(self) -> ErrorCode:
        return (await self.end(commit=False)).error
