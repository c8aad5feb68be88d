"""A transaction coordinator and a group coordinator that share one journal, with a clock that tests set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.groups import GroupCoordinator, GroupSettings
from headrace.broker.transactions import (
    EndResult,
    InitResult,
    TransactionContext,
    TransactionCoordinator,
    TransactionSettings,
)
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode
from tests.unit.groups.journal import MemoryJournal
from tests.unit.groups.rig import DrivenClock, Topics, settle

from .partitions import FakePartition, FakePartitions

__all__ = ["MINUTE_MS", "NONE", "Producer", "Rig", "both_protocols", "settle"]

MINUTE_MS = 60_000
NONE = ErrorCode.NONE
both_protocols = pytest.mark.parametrize("uses_v2", [False, True], ids=["first protocol", "second protocol"])


class Ids:
    def __init__(self) -> None:
        self.last_producer_id = 1_000
        self.fails = False

    async def next(self) -> int:
        if self.fails:
            raise StorageError("no space")
        self.last_producer_id += 1
        return self.last_producer_id


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
        self._timeout = asyncio.timeout(120)
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
            TransactionContext(
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
        )

    async def _start(self) -> None:
        starting = asyncio.ensure_future(self.transactions.recover())
        await self.groups.start()
        while not starting.done():
            await settle()
            for _, _, partition in self.partitions.all():
                partition.sync()
        await starting

    async def __aenter__(self) -> Rig:
        await self._timeout.__aenter__()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))
        await self._start()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self.journal.release()
        await self.transactions.stop()
        await self.groups.stop()
        await settle()
        await self._timeout.__aexit__(*raised)
        assert not self.faults

    async def crash(self, *, with_last_write: bool = False, power: bool = False) -> None:
        """Kill the process and start another one; with ``power``, everything that was not synced is lost as well."""
        result = self.journal.after_kill(with_last_write=with_last_write)
        await self.transactions.stop()
        await self.groups.stop()
        if power:
            for _, _, partition in self.partitions.all():
                partition.lose_power()
        self.journal = result
        self.clock.steady_s += 1
        self.starts += 1
        self._open()
        await self._start()

    async def advance(self, seconds: float) -> None:
        """Let time pass in small steps, as for a process that is not blocked."""
        await settle()
        remaining_s = seconds
        while remaining_s > 0:
            step = min(remaining_s, 0.5)
            remaining_s -= step
            self.clock.steady_s += step
            self.clock.wall_ms += int(step * 1000)
            self.transactions.tick()
            await settle()

    def sync(self) -> None:
        for _, _, partition in self.partitions.all():
            partition.sync()

    def partition(self, topic: str = "orders", index: int = 0) -> FakePartition:
        result = self.partitions.find(topic, index)
        assert result is not None
        return result

    def committed(self) -> tuple[list[object], list[object]]:
        """The values that readers of committed records get from the two partitions of ``orders``."""
        return self.partition().committed(), self.partition("orders", 1).committed()

    def state(self, transactional_id: str = "x") -> str | None:
        result = self.transactions.describe(transactional_id)
        return None if isinstance(result, ErrorCode) else result.state

    def offset(self, group: str = "g", topic: str = "orders", partition: int = 0) -> int | None:
        row = self.groups.fetch(group, topic, partition)
        return None if row is None else row.offset


class Producer:
    """A client that knows only the responses that it received. With ``uses_v2`` it uses the protocol of KIP-890."""

    def __init__(self, rig: Rig, transactional_id: str = "x", *, uses_v2: bool = True) -> None:
        self.rig = rig
        self.transactional_id = transactional_id
        self.uses_v2 = uses_v2
        self.producer_id = -1
        self.epoch = -1

    @classmethod
    async def create(cls, rig: Rig, transactional_id: str = "x", *, uses_v2: bool = True) -> Producer:
        """Return a producer that owns its transactional id."""
        producer = cls(rig, transactional_id, uses_v2=uses_v2)
        await producer.init()
        return producer

    @property
    def identity(self) -> tuple[str, int, int]:
        return self.transactional_id, self.producer_id, self.epoch

    async def init(self, *, own: bool = False, timeout_ms: int = MINUTE_MS) -> InitResult:
        own_identity = (self.producer_id, self.epoch) if own else (-1, -1)
        answer = await self.rig.transactions.init(self.transactional_id, timeout_ms, *own_identity)
        if answer.error is ErrorCode.NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.epoch
        return answer

    def write(self, value: object, topic: str = "orders", index: int = 0) -> ErrorCode:
        """Write as a client does: in the first protocol it adds the partition to the transaction before it writes."""
        if not self.uses_v2:
            error = self.rig.transactions.add_partitions(*self.identity, [(topic, index)])
            if error is not ErrorCode.NONE:
                return error
        error = self.rig.transactions.admit(*self.identity, topic, index, may_add=self.uses_v2)
        if error is not ErrorCode.NONE:
            return error
        written = self.rig.partition(topic, index).append(self.producer_id, self.epoch, value)
        return ErrorCode.NONE if written else ErrorCode.INVALID_PRODUCER_EPOCH

    async def commit_offset(self, offset: int, group: str = "g", topic: str = "orders") -> ErrorCode:
        transactions = self.rig.transactions
        if not self.uses_v2:
            error = transactions.add_group(*self.identity, group)
            if error is not ErrorCode.NONE:
                return error
        (error,) = await self.rig.groups.commit_in_transaction(
            self.transactional_id,
            group,
            [(topic, 0, offset, -1, "")],
            lambda: transactions.add_group(*self.identity, group, may_add=self.uses_v2),
        )
        return error

    async def end(self, *, commit: bool) -> EndResult:
        answer = await self.rig.transactions.end(*self.identity, commit=commit, bumps_epoch=self.uses_v2)
        if answer.error is ErrorCode.NONE and self.uses_v2:
            self.producer_id, self.epoch = answer.producer_id, answer.epoch
        return answer

    async def commit(self) -> ErrorCode:
        return (await self.end(commit=True)).error

    async def abort(self) -> ErrorCode:
        return (await self.end(commit=False)).error
