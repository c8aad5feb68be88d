"""A coordinator with a driven clock, and clients that behave like consumers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headrace.broker.groups import (
    GroupCoordinator,
    GroupSettings,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
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
    """Encode a consumer's subscription: version, topics, no user data, from version 1 an empty list of partitions."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    tail = struct.pack(">i", -1) + (struct.pack(">i", 0) if version >= 1 else b"")
    return struct.pack(">hi", version, len(topics)) + names + tail


async def settle() -> None:
    """Run the event loop until all tasks wait for time to pass."""
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
        self._time_limit = asyncio.timeout(120)
        self._waiting_requests: list[asyncio.Task[Any]] = []

    def _new(self) -> GroupCoordinator:
        return GroupCoordinator(
            settings=self.settings,
            journal=self.journal,
            topics=self.topics,
            clock=self.clock,
            trusted_ms=self.clock.now_ms,
        )

    async def __aenter__(self) -> Rig:
        # Without this limit, a request that never gets a response would block its test.
        await self._time_limit.__aenter__()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))
        await self.groups.start()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._time_limit.__aexit__(*raised)
        self.journal.release()
        await self.groups.stop()
        await settle()
        unanswered = [task for task in self._waiting_requests if not task.done()]
        for task in unanswered:
            task.cancel()
        assert not unanswered, "a request was never answered"
        assert not self.faults

    async def crash(self, settings: GroupSettings | None = None, *, with_last_write: bool = False) -> None:
        """Kill the process and start another one, which has only the entries of the journal."""
        journal_after_kill = self.journal.after_kill(with_last_write=with_last_write)
        await self.groups.stop()
        self.settings = settings or self.settings
        self.journal = journal_after_kill
        self.clock.steady_s += 1
        self.groups = self._new()
        await self.groups.start()

    async def advance(self, seconds: float) -> None:
        """Let time pass in small steps, as for a process that is not blocked."""
        await settle()
        left = seconds
        while left > 0:
            step = min(left, 0.5)
            left -= step
            self.clock.steady_s += step
            self.clock.wall_ms += int(step * 1000)
            self.groups.tick()
            await settle()

    def start_request(self, request: Awaitable[T]) -> asyncio.Task[T]:
        """Send a request that may have to wait."""
        task: asyncio.Task[T] = asyncio.ensure_future(request)  # type: ignore[assignment]
        self._waiting_requests.append(task)
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
    """One consumer. It knows only the responses that it received."""

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
    answer: JoinResult = field(default_factory=JoinResult)

    def join_request(self, **changes: Any) -> JoinRequest:
        join_request = JoinRequest(
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
        return replace(join_request, **changes)

    async def join_once(self, **changes: Any) -> JoinResult:
        self.answer = await self.rig.groups.join(self.join_request(**changes))
        if self.answer.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = self.answer.member_id
        if self.answer.error is ErrorCode.NONE:
            self.generation = self.answer.generation
        return self.answer

    async def join(self) -> JoinResult:
        answer = await self.join_once()
        return await self.join_once() if answer.error is ErrorCode.MEMBER_ID_REQUIRED else answer

    def joining(self) -> asyncio.Task[JoinResult]:
        return self.rig.start_request(self.join())

    @property
    def leads(self) -> bool:
        return self.answer.leader == self.member_id

    async def sync(self, assignments: dict[str, bytes] | None = None, **changes: Any) -> SyncResult:
        sync_request = SyncRequest(
            self.group_id, self.member_id, self.instance_id, self.generation, assignments=assignments or {}
        )
        answer = await self.rig.groups.sync(replace(sync_request, **changes))
        if answer.error is ErrorCode.NONE:
            self.assignment = answer.assignment
        return answer

    def syncing(self, assignments: dict[str, bytes] | None = None) -> asyncio.Task[SyncResult]:
        return self.rig.start_request(self.sync(assignments))

    def heartbeat(self) -> ErrorCode:
        return self.rig.groups.heartbeat(self.group_id, self.member_id, self.instance_id, self.generation)

    async def leave(self) -> ErrorCode | list[ErrorCode]:
        return await self.rig.groups.leave(self.group_id, [LeavingMember(self.member_id, self.instance_id)])

    async def commit(self, offset: int, **where: Any) -> ErrorCode:
        return await self.rig.commit(
            offset,
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            **where,
        )


async def join_all(*clients: Client) -> None:
    """Make all clients join one generation."""
    joins = [client.joining() for client in clients]
    await settle()
    while not all(join.done() for join in joins):
        for index, client in enumerate(clients):
            if joins[index].done() and client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
                joins[index] = client.joining()
        await settle()
    assert {join.result().error for join in joins} == {ErrorCode.NONE}
    assert len({client.generation for client in clients}) == 1


async def form_group(*clients: Client) -> None:
    """Form one stable group of the clients; the assignment of each is its own member id."""
    await join_all(*clients)
    syncs = [
        client.syncing(
            {other.member_id: other.member_id.encode() for other in clients} if client.leads else None
        )
        for client in clients
    ]
    assert {(await sync).error for sync in syncs} == {ErrorCode.NONE}


async def keep_alive(rig: Rig, seconds: float, clients: Iterable[Client]) -> None:
    """Let time pass while these clients send heartbeats."""
    for _ in range(int(seconds)):
        await rig.advance(1)
        for client in clients:
            client.heartbeat()
