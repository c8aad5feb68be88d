"""Producers, successors and zombies act in any order, with crashes, power losses and full disks in between. A
transaction is always visible as a whole or not at all, and its outcome matches the response to its producer.

The model knows only the responses that clients received. Each transaction that a client begins is an *attempt*: the
values that it wrote, the offset that it committed, and its outcome. At the end all transactions are ended, and the
model is compared with committed records and committed offsets.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.codes import ErrorCode

from .rig import Producer, Rig, settle

PARTITIONS = [("orders", 0), ("orders", 1), ("payments", 0)]
RETRIABLE = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR}


class Outcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    UNKNOWN = "unknown"


@dataclass
class Attempt:
    number: int
    values: set[tuple[str, int, str]] = field(default_factory=set)
    offset: int | None = None
    outcome: Outcome = Outcome.OPEN
    #: Whether an end without a response requested a commit; None if no end is in doubt.
    requested_commit: bool | None = None


class Client:
    """A producer that follows the protocol: after an end without a response it requests the same end again, and it does
    not write before it knows how the last transaction ended.
    """

    def __init__(self, world: World, name: int, transactional_id: str, *, uses_v2: bool) -> None:
        self.world = world
        self.name = name
        self.producer = Producer(world.rig, transactional_id, uses_v2=uses_v2)
        self.attempt: Attempt | None = None
        self.is_fenced = True

    def current_attempt(self) -> Attempt:
        if self.attempt is None:
            self.attempt = Attempt(len(self.world.attempts))
            self.world.attempts.append(self.attempt)
        return self.attempt

    def give_up(self) -> None:
        """Abandon the attempt: the coordinator ends an open transaction."""
        if self.attempt is not None and self.attempt.outcome is Outcome.OPEN:
            # A commit was requested without a response, so the transaction may have been committed.
            self.attempt.outcome = Outcome.UNKNOWN if self.attempt.requested_commit else Outcome.NOT_COMMITTED
        self.attempt = None

    async def init(self, *, own: bool) -> None:
        if self.attempt is not None and self.attempt.requested_commit is not None:
            return
        answer = await self.producer.init(own=own and self.producer.producer_id >= 0)
        if answer.error in RETRIABLE:
            return
        self.give_up()
        self.is_fenced = answer.error is not ErrorCode.NONE

    def write(self, topic: str, index: int) -> None:
        if self.is_fenced and self.producer.producer_id < 0:
            return
        attempt = self.current_attempt()
        if attempt.requested_commit is not None:
            return
        value = f"{attempt.number}.{len(attempt.values)}"
        error = self.producer.write(value, topic, index)
        if error is ErrorCode.NONE:
            attempt.values.add((topic, index, value))
        elif error not in RETRIABLE:
            self.is_fenced = True

    async def commit_offset(self) -> None:
        if self.producer.producer_id < 0:
            return
        attempt = self.current_attempt()
        if attempt.requested_commit is not None:
            return
        offset = attempt.number * 100 + self.world.step
        error = await self.world.response_to(self.producer.commit_offset(offset))
        if error is ErrorCode.NONE:
            attempt.offset = offset
        elif error is None:
            # No response arrived, so the offset may be stored. The client does not know, so it must abort.
            attempt.requested_commit = False

    async def end(self, *, commit: bool) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        if attempt.requested_commit is not None:
            commit = attempt.requested_commit
        if not attempt.values and attempt.offset is None and attempt.requested_commit is None:
            commit = False
        before = self.producer.identity
        answer = await self.world.response_to(self.producer.end(commit=commit))
        if answer is None or answer.error in RETRIABLE:
            # In the second protocol the client does not know its new epoch, so it retries with the old one.
            _, self.producer.producer_id, self.producer.epoch = before
            attempt.requested_commit = commit
            return
        if answer.error is ErrorCode.NONE:
            attempt.outcome = Outcome.COMMITTED if commit else Outcome.NOT_COMMITTED
        elif attempt.requested_commit and commit:
            attempt.outcome = Outcome.UNKNOWN
        else:
            attempt.outcome = Outcome.NOT_COMMITTED
        if answer.error not in (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE):
            self.is_fenced = True
        self.attempt = None


class World:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.attempts: list[Attempt] = []
        self.step = 0
        self.unanswered: list[asyncio.Future[object]] = []
        self.clients = [
            Client(self, number, "x" if number < 3 else "y", uses_v2=number != 1) for number in range(4)
        ]

    async def response_to(self, request):  # type: ignore[no-untyped-def]
        """Return the response, or ``None`` if the disk is so slow that the next action comes before the response."""
        task = asyncio.ensure_future(request)
        await settle()
        if task.done():
            return task.result()
        self.unanswered.append(task)
        return None

    async def do(self, action: str, identity: int, index: int, flag: bool) -> None:
        self.step += 1
        client = self.clients[identity]
        rig = self.rig
        match action:
            case "init":
                if rig.journal._open.is_set():
                    await client.init(own=flag)
            case "write":
                client.write(*PARTITIONS[index])
            case "offset":
                await client.commit_offset()
            case "end":
                await client.end(commit=flag)
            case "sync":
                rig.partition(*PARTITIONS[index]).sync()
            case "full":
                rig.partition(*PARTITIONS[index]).is_full = flag
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
                await self.crash(with_last_write=flag, power=index > 0)
            case "time-out":
                rig.journal.release()
                await rig.advance(61)

    async def crash(self, *, with_last_write: bool, power: bool) -> None:
        for _, _, partition in self.rig.partitions.all():
            partition.is_full = False
        await self.rig.crash(with_last_write=with_last_write, power=power)
        for task in self.unanswered:
            task.cancel()
        await asyncio.wait(self.unanswered or [asyncio.ensure_future(settle())])
        self.unanswered = []

    async def settle(self) -> None:
        """Restart, retry every end that is in doubt, and take over every transactional id."""
        await self.crash(with_last_write=True, power=True)
        for client in self.clients:
            if client.attempt is not None and client.attempt.requested_commit is not None:
                await client.end(commit=client.attempt.requested_commit)
            client.give_up()
        for transactional_id in ("x", "y"):
            await Producer(self.rig, transactional_id).init()
        self.rig.sync()

    def check(self) -> None:
        visible = {
            (topic, index, value)
            for topic, index, partition in self.rig.partitions.all()
            for value in partition.committed()
        }
        assert all(not partition.open_transactions() for _, _, partition in self.rig.partitions.all())
        assert visible <= {value for attempt in self.attempts for value in attempt.values}
        offsets: set[int | None] = {None}
        for attempt in self.attempts:
            assert attempt.outcome is not Outcome.OPEN
            visible_values = attempt.values & visible
            assert visible_values in (set(), attempt.values), f"{attempt} is seen in part: {visible_values}"
            if attempt.values:
                is_committed = bool(visible_values)
                assert attempt.outcome is not Outcome.COMMITTED or is_committed, f"{attempt} is not seen"
                assert attempt.outcome is not Outcome.NOT_COMMITTED or not is_committed, f"{attempt} is seen"
            else:
                is_committed = attempt.outcome is not Outcome.NOT_COMMITTED
            if is_committed and attempt.offset is not None:
                offsets.add(attempt.offset)
        assert self.rig.offset() in offsets
        certainly_committed = [
            attempt
            for attempt in self.attempts
            if attempt.outcome is Outcome.COMMITTED and attempt.offset is not None
        ]
        assert not certainly_committed or self.rig.offset() is not None
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
def test_a_transaction_is_visible_as_a_whole_or_not_at_all_as_acknowledged(
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
            world.check()

    asyncio.run(run())
