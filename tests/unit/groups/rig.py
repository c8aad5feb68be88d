"""A coordinator with a clock that is driven by hand, and clients that do what a consumer does."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headrace.broker.groups import (
    GroupCoordinator,
    GroupSettings,
    JoinAnswer,
    JoinAsk,
    LeaveAsk,
    SyncAnswer,
    SyncAsk,
)
from headrace.wire.codes import ErrorCode

from .journal import MemoryJournal

T = TypeVar("T")

START_MS = 1_700_000_000_000


class DrivenClock:
    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.steady_s = 1_000.0

    def now_ms(self) -> int:
        return self.wall_ms

    def steady(self) -> float:
        return self.steady_s


class Topics:
    def __init__(self, **partitions: int) -> None:
        self.partitions = dict(partitions)

    def has_partition(self, name: str, index: int) -> bool:
        return 0 <= index < self.partitions.get(name, 0)

    def id_of(self, name: str) -> bytes | None:
        return name.encode().ljust(16, b"\0") if name in self.partitions else None

    def name_of(self, topic_id: bytes) -> str | None:
        name = topic_id.rstrip(b"\0").decode()
        return name if name in self.partitions else None


def subscription(*topics: str, version: int = 1) -> bytes:
    """As a consumer encodes it: version, topics, no user data, and from version 1 no owned partitions."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    tail = struct.pack(">i", -1) + (struct.pack(">i", 0) if version >= 1 else b"")
    return struct.pack(">hi", version, len(topics)) + names + tail


async def settle() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(10):
        await asyncio.sleep(0)


class Rig:
    def __init__(
        self,
        settings: GroupSettings | None = None,
        journal: MemoryJournal | None = None,
        topics: Topics | None = None,
    ) -> None:
        self.settings = settings or GroupSettings()
        self.clock = DrivenClock()
        self.journal: Any = journal or MemoryJournal()
        self.topics = topics or Topics(orders=4, payments=2)
        self.groups = self._new()
        self.faults: list[dict[str, Any]] = []
        self._patience = asyncio.timeout(120)
        self._parked: list[asyncio.Task[Any]] = []

    def _new(self) -> GroupCoordinator:
        return GroupCoordinator(
            settings=self.settings,
            journal=self.journal,
            topics=self.topics,
            clock=self.clock,
            trusted_ms=self.clock.now_ms,
        )

    async def __aenter__(self) -> Rig:
        # A request that is never answered fails its test instead of holding it up.
        await self._patience.__aenter__()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))
        await self.groups.start()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._patience.__aexit__(*raised)
        self.journal.release()
        await self.groups.stop()
        await settle()
        unanswered = [task for task in self._parked if not task.done()]
        for task in unanswered:
            task.cancel()
        assert not unanswered, "a request was never answered"
        assert not self.faults

    async def crash(self, settings: GroupSettings | None = None, *, with_last_write: bool = False) -> None:
        """The process is killed and another started; only what the journal has is left."""
        found = self.journal.killed(with_last_write=with_last_write)
        await self.groups.stop()
        self.settings = settings or self.settings
        self.journal = found
        self.clock.steady_s += 1
        self.groups = self._new()
        await self.groups.start()

    async def advance(self, seconds: float) -> None:
        """Let time pass as it does for a process that is not held up."""
        await settle()
        left = seconds
        while left > 0:
            step = min(left, 0.5)
            left -= step
            self.clock.steady_s += step
            self.clock.wall_ms += int(step * 1000)
            self.groups.tick()
            await settle()

    def park(self, request: Awaitable[T]) -> asyncio.Task[T]:
        """Send a request that may have to wait."""
        task: asyncio.Task[T] = asyncio.ensure_future(request)  # type: ignore[assignment]
        self._parked.append(task)
        return task

    def state(self, group_id: str = "g") -> str | None:
        group = self.groups.describe(group_id)
        return None if group is None else group.state

    async def commit(
        self, offset: int, *, topic: str = "orders", partition: int = 0, group_id: str = "g", **who: Any
    ) -> ErrorCode:
        (error,) = await self.groups.commit(group_id, [(topic, partition, offset, -1, "")], **who)
        return error

    def committed(self, topic: str = "orders", partition: int = 0, group_id: str = "g") -> int | None:
        row = self.groups.fetch(group_id, topic, partition)
        return None if row is None else row.offset


@dataclass
class Client:
    """One consumer. It knows what it was told, and nothing else."""

    rig: Rig
    group_id: str = "g"
    instance_id: str | None = None
    client_id: str = "app"
    protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("orders")),)
    protocol_type: str = "consumer"
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    version: int = 9
    member_id: str = ""
    generation: int = -1
    assignment: bytes = b""
    answer: JoinAnswer = field(default_factory=JoinAnswer)

    def ask(self, **changes: Any) -> JoinAsk:
        ask = JoinAsk(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host="/127.0.0.1",
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocol_type=self.protocol_type,
            protocols=self.protocols,
            id_required=self.version >= 4,
            can_skip_assignment=self.version >= 9,
        )
        return replace(ask, **changes)

    async def join_once(self, **changes: Any) -> JoinAnswer:
        self.answer = await self.rig.groups.join(self.ask(**changes))
        if self.answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = self.answer.member_id
        if self.answer.error is ErrorCode.NONE:
            self.generation = self.answer.generation
        return self.answer

    async def join(self) -> JoinAnswer:
        answer = await self.join_once()
        return await self.join_once() if answer.error is ErrorCode.MEMBER_ID_REQUIRED else answer

    def joining(self) -> asyncio.Task[JoinAnswer]:
        return self.rig.park(self.join())

    @property
    def leads(self) -> bool:
        return self.answer.leader == self.member_id

    async def sync(self, assignments: dict[str, bytes] | None = None, **changes: Any) -> SyncAnswer:
        ask = SyncAsk(
            self.group_id, self.member_id, self.instance_id, self.generation, assignments=assignments or {}
        )
        answer = await self.rig.groups.sync(replace(ask, **changes))
        if answer.error is ErrorCode.NONE:
            self.assignment = answer.assignment
        return answer

    def syncing(self, assignments: dict[str, bytes] | None = None) -> asyncio.Task[SyncAnswer]:
        return self.rig.park(self.sync(assignments))

    def heartbeat(self) -> ErrorCode:
        return self.rig.groups.heartbeat(self.group_id, self.member_id, self.instance_id, self.generation)

    async def leave(self) -> ErrorCode | list[ErrorCode]:
        return await self.rig.groups.leave(self.group_id, [LeaveAsk(self.member_id, self.instance_id)])

    async def commit(self, offset: int, **where: Any) -> ErrorCode:
        return await self.rig.commit(
            offset,
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            **where,
        )


async def assemble(*clients: Client) -> None:
    """Let them all join one generation."""
    joins = [client.joining() for client in clients]
    await settle()
    while not all(join.done() for join in joins):
        for index, client in enumerate(clients):
            if joins[index].done() and client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
                joins[index] = client.joining()
        await settle()
    assert {join.result().error for join in joins} == {ErrorCode.NONE}
    assert len({client.generation for client in clients}) == 1


async def form(*clients: Client) -> None:
    """Bring them into one stable group; each is assigned its own member id."""
    await assemble(*clients)
    syncs = [
        client.syncing(
            {other.member_id: other.member_id.encode() for other in clients} if client.leads else None
        )
        for client in clients
    ]
    assert {(await sync).error for sync in syncs} == {ErrorCode.NONE}


async def keep_alive(rig: Rig, seconds: float, clients: Iterable[Client]) -> None:
    """Let time pass while these send heartbeats."""
    for _ in range(int(seconds)):
        await rig.advance(1)
        for client in clients:
            client.heartbeat()
