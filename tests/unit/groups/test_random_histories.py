"""Random actions of members, disks and clocks in any order never break the guarantees of the coordinator.

The model knows only the responses that clients received. It checks that one generation has one assignment, even across
crashes; that an acknowledged commit is returned until another commit or a deletion; that generations increase; that the
members of a stable group have the same protocol; and that every request gets a response in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.broker.groups import GroupSettings
from headrace.broker.groups.group import State
from headrace.broker.groups.settings import GROUP_BYTES
from headrace.broker.limits import text_bytes
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, settle, subscription

T = TypeVar("T")

PARTITIONS = 3
CLIENT_INDEX = st.integers(0, 4)
PARTITION = st.integers(0, PARTITIONS - 1)
PROTOCOLS = st.sampled_from(
    [
        (("range", subscription("orders")),),
        (("range", subscription("orders", "payments")),),
        (("sticky", subscription("orders")), ("range", subscription("orders"))),
        (("range", subscription("orders")), ("sticky", b"\xff")),
    ]
)


class OffsetChange:
    """A commit, or a deletion if ``offset`` is None, of one partition. Changes are in the order of their requests."""

    def __init__(self, offset: int | None) -> None:
        self.offset = offset
        self.is_acknowledged = False


class GroupMachine(RuleBasedStateMachine):
    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        members_max=st.sampled_from([1_000, 2]),
        rounds=st.integers(0, 8),
    )
    def begin(self, delay_ms: int, members_max: int, rounds: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.faults: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self.rig = self.run(
            self.make(
                GroupSettings(
                    initial_rebalance_delay_ms=delay_ms,
                    members_per_group_max=members_max,
                    new_member_join_timeout_ms=30_000,
                )
            )
        )
        self.clients = [self.new_client(index) for index in range(5)]
        self.requests: list[asyncio.Task[Any] | None] = [None] * 5
        self.others: list[asyncio.Task[Any]] = []
        self.changes: list[list[OffsetChange]] = [[OffsetChange(None)] for _ in range(PARTITIONS)]
        for changes in self.changes:
            changes[0].is_acknowledged = True
        self.assigned: dict[int, bytes] = {}
        self.generation = 0
        self.assignments_made = 0
        self.clients_continue(rounds, set())

    async def make(self, settings: GroupSettings) -> Rig:
        rig = Rig(settings)
        await rig.groups.start()
        return rig

    def new_client(self, index: int) -> Client:
        """The last two are static members."""
        return Client(
            self.rig,
            instance_id=f"i{index}" if index >= 3 else None,
            rebalance_timeout_ms=20_000,
            version=3 if index == 0 else 9,
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def and_settle() -> T:
            result = await work
            await settle()
            return result

        return self.loop.run_until_complete(and_settle())

    def send(self, who: int, request: Coroutine[Any, Any, Any]) -> None:
        """Send a request; each connection has at most one request in progress."""
        task = self.requests[who]
        assert task is None
        self.requests[who] = self.loop.create_task(request)
        self.run(settle())
        self.collect()

    def collect(self) -> None:
        for number, task in enumerate(self.requests):
            if task is not None and task.done():
                self.requests[number] = None
                task.result()

    def is_idle(self, who: int) -> bool:
        return self.requests[who] is None

    # -- members

    @rule(who=CLIENT_INDEX, protocols=PROTOCOLS)
    def join(self, who: int, protocols: Any) -> None:
        client = self.clients[who]
        if self.is_idle(who):
            client.protocols = protocols
            self.send(who, self.joined(client))

    @rule(who=CLIENT_INDEX)
    def join_again(self, who: int) -> None:
        if self.is_idle(who):
            self.send(who, self.joined(self.clients[who]))

    async def joined(self, client: Client) -> None:
        answer = await client.join()
        if answer.error is ErrorCode.NONE:
            assert answer.member_id == client.member_id
            assert answer.generation > 0
            assert client.leads == bool(answer.members)
            assert not answer.members or client.member_id in {member_id for member_id, _, _ in answer.members}
        elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            client.member_id, client.generation = "", -1

    @rule(who=CLIENT_INDEX)
    def sync(self, who: int) -> None:
        client = self.clients[who]
        if self.is_idle(who) and client.generation > 0:
            self.send(who, self.synced(client))

    async def synced(self, client: Client) -> None:
        assignments = None
        if client.leads:
            # Each assignment contains a number, so that no two assignments are equal.
            self.assignments_made += 1
            token = f"{client.generation}:{self.assignments_made}:".encode()
            assignments = {member_id: token + member_id.encode() for member_id, _, _ in client.answer.members}
        generation = client.generation
        answer = await client.sync(assignments)
        if answer.error is ErrorCode.NONE and answer.assignment:
            assigned_generation, number, _ = answer.assignment.split(b":")
            assert int(assigned_generation) == generation
            assert self.assigned.setdefault(generation, number) == number, "two assignments of one generation"

    @rule(who=CLIENT_INDEX)
    def heartbeat(self, who: int) -> None:
        async def beat(client: Client) -> None:
            if client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID and self.is_idle(who):
                client.member_id, client.generation = "", -1

        if self.clients[who].member_id:
            self.run(beat(self.clients[who]))

    @rule(who=CLIENT_INDEX)
    def leave(self, who: int) -> None:
        client = self.clients[who]
        if self.is_idle(who) and client.member_id:
            self.send(who, self.left(client))

    async def left(self, client: Client) -> None:
        await client.leave()
        client.member_id, client.generation = "", -1

    @rule(who=CLIENT_INDEX)
    def die(self, who: int) -> None:
        """The client's process dies without leaving the group, and starts again."""
        task = self.requests[who]
        if task is not None:
            task.cancel()
            self.run(settle())
        self.requests[who] = None
        self.clients[who] = self.new_client(who)

    @rule(rounds=st.integers(1, 6), but=st.sets(CLIENT_INDEX, max_size=4))
    def clients_continue(self, rounds: int, but: set[int]) -> None:
        """For some rounds, most clients do what a real client would do next. Otherwise groups would seldom form."""
        for _ in range(rounds):
            for number, client in enumerate(self.clients):
                if number not in but and self.is_idle(number):
                    self.continue_client(number, client)
            self.run(self.rig.advance(1))
            self.collect()

    def continue_client(self, who: int, client: Client) -> None:
        async def beat() -> ErrorCode:
            return client.heartbeat()

        error = self.run(beat()) if client.generation > 0 else ErrorCode.UNKNOWN_MEMBER_ID
        if error is ErrorCode.NONE:
            if not client.assignment.startswith(b"%d:" % client.generation):
                self.sync(who)
        else:
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id, client.generation = "", -1
            self.join_again(who)

    # -- offsets

    def change(self, partition: int, offset: int | None) -> OffsetChange:
        change = OffsetChange(offset)
        self.changes[partition].append(change)
        return change

    @rule(who=CLIENT_INDEX, partition=PARTITION, offset=st.integers(0, 1_000))
    def commit(self, who: int, partition: int, offset: int) -> None:
        client = self.clients[who]
        if self.is_idle(who) and client.generation > 0:
            self.send(who, self.committed(client.commit(offset, partition=partition), partition, offset))

    @rule(partition=PARTITION, offset=st.integers(0, 1_000))
    def commit_without_being_a_member(self, partition: int, offset: int) -> None:
        self.other(self.committed(self.rig.commit(offset, partition=partition), partition, offset))

    async def committed(self, request: Coroutine[Any, Any, ErrorCode], partition: int, offset: int) -> None:
        change = self.change(partition, offset)
        error = await request
        if error is ErrorCode.NONE:
            change.is_acknowledged = True
        elif error is not ErrorCode.NOT_COORDINATOR:
            # The change was refused before it was written. After a failed write the outcome is unknown.
            self.changes[partition].remove(change)

    @rule(partition=PARTITION)
    def delete_an_offset(self, partition: int) -> None:
        async def delete() -> None:
            before = self.rig.committed(partition=partition)
            change = self.change(partition, None)
            errors = await self.rig.groups.delete_offsets("g", [("orders", partition)])
            if errors != [ErrorCode.NONE]:
                if errors is not ErrorCode.NOT_COORDINATOR:
                    self.changes[partition].remove(change)
            elif before is not None:
                change.is_acknowledged = True

        self.other(delete())

    @rule()
    def delete_the_group(self) -> None:
        async def delete() -> None:
            changes = [self.change(partition, None) for partition in range(PARTITIONS)]
            (error,) = await self.rig.groups.delete_groups(["g"])
            for partition, change in enumerate(changes):
                if error is ErrorCode.NONE:
                    change.is_acknowledged = True
                elif error is not ErrorCode.NOT_COORDINATOR:
                    self.changes[partition].remove(change)
            if error in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
                self.forget_generations()

        self.other(delete())

    @rule(days=st.sampled_from([0, 6, 8]))
    def expire(self, days: int) -> None:
        async def expire() -> None:
            changes = [self.change(partition, None) for partition in range(PARTITIONS)]
            self.forget_generations()
            with contextlib.suppress(StorageError):
                now_ms = self.rig.clock.wall_ms + days * 24 * 3600 * 1000
                expired = {each.partition for each in await self.rig.groups.expire(now_ms)}
                for partition, change in enumerate(changes):
                    if partition in expired:
                        change.is_acknowledged = True
                    else:
                        self.changes[partition].remove(change)
                self.forget_generations()

        self.other(expire())

    def forget_generations(self) -> None:
        """Forget what the model knows: a deleted group may start again at generation 0."""
        self.assigned.clear()
        self.generation = 0

    def other(self, request: Coroutine[Any, Any, None]) -> None:
        self.others.append(self.loop.create_task(request))
        self.run(settle())

    # -- clocks, disks and the broker's process

    @rule(seconds=st.sampled_from([1, 5, 11, 25]))
    def time_passes(self, seconds: int) -> None:
        self.run(self.rig.advance(seconds))

    @rule(seconds=st.sampled_from([5, 60, 4_000]))
    def the_process_is_blocked(self, seconds: int) -> None:
        async def tick() -> None:
            self.rig.groups.tick()

        self.rig.clock.steady_s += seconds
        self.run(tick())

    @rule(ms=st.sampled_from([-(10**12), 10**12]))
    def the_wall_clock_jumps(self, ms: int) -> None:
        self.rig.clock.wall_ms = max(self.rig.clock.wall_ms + ms, 0)

    @rule()
    def the_disk_is_slow(self) -> None:
        self.rig.journal.hold()

    @rule()
    def the_disk_is_fast(self) -> None:
        self.rig.journal.release()
        self.run(settle())

    @rule(fails=st.booleans())
    def the_disk_fails_or_works(self, fails: bool) -> None:
        self.rig.journal.fails = fails

    @rule()
    def a_snapshot_is_taken(self) -> None:
        self.rig.journal.snapshot()

    @rule(with_last_write=st.booleans())
    def the_broker_is_killed(self, with_last_write: bool) -> None:
        self.run(self.rig.crash(with_last_write=with_last_write))
        # Every request to the old process got a response, at the latest when the process ended.
        assert all(task.done() for task in self.others)
        self.collect()
        assert self.requests == [None] * 5
        group = self.rig.groups._groups.get("g")
        if group is not None:
            newest = max(self.assigned, default=0)
            assert group.generation >= newest, "the broker lost an assigned generation"
        self.generation = 0

    # -- invariants

    @invariant()
    def responses_are_consistent(self) -> None:
        assert not self.faults
        for task in [task for task in self.others if task.done()]:
            self.others.remove(task)
            failure = task.exception()
            if failure is not None:
                raise failure
        self.collect()

    @invariant()
    def a_fetched_offset_is_the_last_committed_one(self) -> None:
        for partition, changes in enumerate(self.changes):
            read = self.rig.committed(partition=partition)
            newest = max(index for index, change in enumerate(changes) if change.is_acknowledged)
            assert read in {change.offset for change in changes[newest:]}, (partition, read, changes)

    @invariant()
    def the_group_is_consistent(self) -> None:
        groups = self.rig.groups
        names = size = waiting = 0
        for known in groups._groups.values():
            own = text_bytes(known.id) + text_bytes(known.protocol_type)
            names += own
            size += GROUP_BYTES + own + sum(member.size_bytes for member in known.members.values())
            size += sum(96 + text_bytes(topic) for topic in known.topics or ())
            waiting += sum(1_024 + text_bytes(member_id) for member_id in known.pending)
        assert (groups._budget.used_bytes, groups._budget.names_bytes) == (size, names)
        assert groups._rebalancer._pending.used_bytes == waiting
        group = groups._groups.get("g")
        if group is None:
            return
        assert group.generation >= self.generation
        self.generation = group.generation
        assert (group.leader in group.members) if group.members else group.leader is None
        assert group.static == {
            m.instance_id: m.id for m in group.members.values() if m.instance_id is not None
        }
        assert group.unsynced <= set(group.members)
        assert not set(group.pending) & set(group.members)
        assert (group.state is State.EMPTY) <= (not group.members)
        event(f"{group.state.value} with {len(group.members)} members")
        if group.state in (State.STABLE, State.COMPLETING):
            assert group.members
            assert group.protocol is not None
            assert all(group.protocol in dict(member.protocols) for member in group.members.values())
        for member in group.members.values():
            is_waiting = member.awaits_join or member.awaits_sync
            assert is_waiting or member.session.deadline is not None, "a member has no session timer"

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.journal.fails = False
        self.rig.journal.release()
        self.run(self.rig.advance(120))
        self.collect()
        self.responses_are_consistent()
        assert self.requests == [None] * 5, "a request was never answered"
        assert not self.others
        group = self.rig.groups._groups.get("g")
        assert group is None or group.state is State.EMPTY, "members without heartbeats were not removed"
        self.run(self.rig.groups.stop())
        self.loop.close()


GroupMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)
test_the_guarantees_hold_for_random_actions = GroupMachine.TestCase
