"""Producers, successors and zombies in any order, with crashes, power losses and full disks between: whatever comes,
a transaction is seen whole or not at all, and as its producer was told.

The model knows only what clients were told. Each transaction that a client begins is an *attempt*: what it wrote,
which offset it committed, and what became of it. At the end everything is settled, and readers and groups are asked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.codes import ErrorCode

from .rig import Producer, Rig, settle

PLACES = [("orders", 0), ("orders", 1), ("payments", 0)]
LATER = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR}


class Fate(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    NOT = "not committed"
    UNKNOWN = "unknown"


@dataclass
class Attempt:
    number: int
    values: set[tuple[str, int, str]] = field(default_factory=set)
    offset: int | None = None
    fate: Fate = Fate.OPEN
    #: What an end that was not answered asked for.
    asked: bool | None = None


class Client:
    """A producer that keeps to the protocol: after a doubtful end it asks for the same end again, and it writes nothing
    before it knows how the last one ended.
    """

    def __init__(self, world: World, name: int, transactional_id: str, *, second: bool) -> None:
        self.world = world
        self.name = name
        self.producer = Producer(world.rig, transactional_id, second=second)
        self.attempt: Attempt | None = None
        self.is_fenced = True

    def begun(self) -> Attempt:
        if self.attempt is None:
            self.attempt = Attempt(len(self.world.attempts))
            self.world.attempts.append(self.attempt)
        return self.attempt

    def give_up(self) -> None:
        """Whatever is open is left to the coordinator."""
        if self.attempt is not None and self.attempt.fate is Fate.OPEN:
            # Without an answer to an end that asked for a commit, it may have been committed.
            self.attempt.fate = Fate.UNKNOWN if self.attempt.asked else Fate.NOT
        self.attempt = None

    async def init(self, *, own: bool) -> None:
        if self.attempt is not None and self.attempt.asked is not None:
            return
        answer = await self.producer.init(own=own and self.producer.producer >= 0)
        if answer.error in LATER:
            return
        self.give_up()
        self.is_fenced = answer.error is not ErrorCode.NONE

    def write(self, topic: str, index: int) -> None:
        if self.is_fenced and self.producer.producer < 0:
            return
        attempt = self.begun()
        if attempt.asked is not None:
            return
        value = f"{attempt.number}.{len(attempt.values)}"
        error = self.producer.write(value, topic, index)
        if error is ErrorCode.NONE:
            attempt.values.add((topic, index, value))
        elif error not in LATER:
            self.is_fenced = True

    async def commit_offset(self) -> None:
        if self.producer.producer < 0:
            return
        attempt = self.begun()
        if attempt.asked is not None:
            return
        offset = attempt.number * 100 + self.world.step
        error = await self.world.answered(self.producer.commit_offset(offset))
        if error is ErrorCode.NONE:
            attempt.offset = offset
        elif error is None:
            # Not answered, so it may be there; a client that does not know cannot commit.
            attempt.asked = False

    async def end(self, *, commit: bool) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        if attempt.asked is not None:
            commit = attempt.asked
        if not attempt.values and attempt.offset is None and attempt.asked is None:
            commit = False
        before = self.producer.who
        answer = await self.world.answered(self.producer.end(commit=commit))
        if answer is None or answer.error in LATER:
            # A second protocol's client has not heard of its new epoch and asks again with the old one.
            _, self.producer.producer, self.producer.epoch = before
            attempt.asked = commit
            return
        if answer.error is ErrorCode.NONE:
            attempt.fate = Fate.COMMITTED if commit else Fate.NOT
        elif attempt.asked and commit:
            attempt.fate = Fate.UNKNOWN
        else:
            attempt.fate = Fate.NOT
        if answer.error not in (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE):
            self.is_fenced = True
        self.attempt = None


class World:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.attempts: list[Attempt] = []
        self.step = 0
        self.lost: list[asyncio.Future[object]] = []
        self.clients = [
            Client(self, number, "x" if number < 3 else "y", second=number != 1) for number in range(4)
        ]

    async def answered(self, request):  # type: ignore[no-untyped-def]
        """The answer, or ``None`` if the disk is slow: the client hears nothing before something else happens."""
        task = asyncio.ensure_future(request)
        await settle()
        if task.done():
            return task.result()
        self.lost.append(task)
        return None

    async def do(self, action: str, who: int, place: int, flag: bool) -> None:
        self.step += 1
        client = self.clients[who]
        rig = self.rig
        match action:
            case "init":
                if rig.journal._open.is_set():
                    await client.init(own=flag)
            case "write":
                client.write(*PLACES[place])
            case "offset":
                await client.commit_offset()
            case "end":
                await client.end(commit=flag)
            case "sync":
                rig.partition(*PLACES[place]).sync()
            case "full":
                rig.partition(*PLACES[place]).is_full = flag
                await rig.advance(1.5)
            case "slow":
                rig.journal.hold()
            case "quick":
                rig.journal.release()
                await settle()
            case "snapshot":
                if rig.journal._open.is_set():
                    rig.journal.snapshot()
            case "crash":
                await self.crash(with_last_write=flag, power=place > 0)
            case "time-out":
                rig.journal.release()
                await rig.advance(61)

    async def crash(self, *, with_last_write: bool, power: bool) -> None:
        for _, _, partition in self.rig.partitions.all():
            partition.is_full = False
        await self.rig.crash(with_last_write=with_last_write, power=power)
        for task in self.lost:
            task.cancel()
        await asyncio.wait(self.lost or [asyncio.ensure_future(settle())])
        self.lost = []

    async def settle(self) -> None:
        """Start once more, let every doubtful end be asked again, and take over every id."""
        await self.crash(with_last_write=True, power=True)
        for client in self.clients:
            if client.attempt is not None and client.attempt.asked is not None:
                await client.end(commit=client.attempt.asked)
            client.give_up()
        for transactional_id in ("x", "y"):
            await Producer(self.rig, transactional_id).init()
        self.rig.sync()

    def judge(self) -> None:
        seen = {
            (topic, index, value)
            for topic, index, partition in self.rig.partitions.all()
            for value in partition.committed()
        }
        assert all(not partition.open_transactions() for _, _, partition in self.rig.partitions.all())
        assert seen <= {value for attempt in self.attempts for value in attempt.values}
        offsets: set[int | None] = {None}
        for attempt in self.attempts:
            assert attempt.fate is not Fate.OPEN
            shown = attempt.values & seen
            assert shown in (set(), attempt.values), f"{attempt} is seen in part: {shown}"
            if attempt.values:
                is_committed = bool(shown)
                assert attempt.fate is not Fate.COMMITTED or is_committed, f"{attempt} is not seen"
                assert attempt.fate is not Fate.NOT or not is_committed, f"{attempt} is seen"
            else:
                is_committed = attempt.fate is not Fate.NOT
            if is_committed and attempt.offset is not None:
                offsets.add(attempt.offset)
        assert self.rig.offset() in offsets
        certain = [
            attempt
            for attempt in self.attempts
            if attempt.fate is Fate.COMMITTED and attempt.offset is not None
        ]
        assert not certain or self.rig.offset() is not None
        assert not self.rig.groups.is_unstable("g", "orders", 0)


STEPS = st.tuples(
    st.sampled_from(
        ["init"] * 4
        + ["write"] * 10
        + ["offset"] * 3
        + ["end"] * 9
        + ["sync"] * 2
        + ["full", "slow", "quick", "quick", "snapshot", "crash", "crash", "time-out"]
    ),
    st.sampled_from([0, 0, 1, 1, 2, 3]),
    st.integers(0, 2),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=10, max_size=80))
def test_a_transaction_is_seen_whole_or_not_at_all_and_as_its_producer_was_told(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    async def run() -> None:
        async with Rig() as rig:
            world = World(rig)
            for client in (world.clients[0], world.clients[3]):
                await client.init(own=False)
            for step in steps:
                await world.do(*step)
            await world.settle()
            world.judge()

    asyncio.run(run())
