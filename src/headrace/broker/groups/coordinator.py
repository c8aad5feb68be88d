"""The coordinator of classic consumer groups: one object that the handlers call.

It owns the groups and their time-outs, keeps what must outlive the process in a journal, and answers a
request when what the answer says is durable. All calls run on one event loop.

Time. Sessions and rebalances go by the steady clock: setting the wall clock expires nobody. The coordinator
looks at them in ``tick``, and those that passed while it was itself away are put off (``ticker.py``). After a
restart every member has a full session to be heard again. A group that was Stable comes back Stable, with its
generation, members and assignments, and goes on without a rebalance.

``trusted_ms`` gives the time for what is kept for days (when an offset was committed, when a group was
emptied). It may run ahead of the time by which ``expire`` is called, but never behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from headrace.broker.groups.answers import (
    DescribedGroup,
    ExpiredOffset,
    JoinAnswer,
    JoinAsk,
    LeaveAsk,
    ListedGroup,
    SyncAnswer,
    SyncAsk,
)
from headrace.broker.groups.budget import Budget
from headrace.broker.groups.commits import Commit, Commits
from headrace.broker.groups.entries import Entry, GroupGone, OffsetRow, OffsetsEntry, TransactionOffsets
from headrace.broker.groups.group import Group, State
from headrace.broker.groups.ledger import Journal, Ledger
from headrace.broker.groups.membership import Membership
from headrace.broker.groups.rebalancer import Rebalancer, write_error
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.ticker import Ticker
from headrace.broker.groups.topic_names import TopicNames
from headrace.clock import Clock
from headrace.errors import DamagedState
from headrace.wire.codes import ErrorCode

__all__ = ["GROUP_TYPE", "GroupCoordinator"]

#: How ListGroups names the only type of group there is here.
GROUP_TYPE = "classic"


class GroupCoordinator:
    def __init__(
        self,
        *,
        settings: GroupSettings,
        journal: Journal,
        topics: TopicNames,
        clock: Clock,
        trusted_ms: Callable[[], int],
    ) -> None:
        """Read the journal. Nothing runs before ``start``."""
        self.topics = topics
        self.settings = settings
        #: Offsets that retention has dropped since the start.
        self.offsets_expired = 0
        self._trusted_ms = trusted_ms
        self._groups: dict[str, Group] = {}
        self._ticker = Ticker(
            clock, interval_ms=settings.tick_interval_ms, stall_ms_min=settings.stall_ms_min
        )
        self._ledger = Ledger(journal, self._applied)
        self._budget = Budget(settings)
        self._rebalancer = Rebalancer(
            settings, self._ticker.timers, self._ledger, self._budget, trusted_ms, self._forget_unused
        )
        self._membership = Membership(
            self._groups, settings, self._rebalancer, self._ledger, self._budget, trusted_ms
        )
        self._commits = Commits(
            self._groups, settings, self._rebalancer, self._ledger, topics, self._budget, trusted_ms
        )
        self._runs = False
        self._load()

    @property
    def ledger(self) -> Ledger:
        """Also that of the transactions: offsets and the decision that they hang on must not come apart."""
        return self._ledger

    @property
    def used_bytes(self) -> int:
        """What all groups take."""
        return self._budget.used_bytes

    # -- life

    async def start(self) -> None:
        """Begin to serve: from now on members are expected to be heard."""
        self._runs = True
        self._ticker.start()
        for group in self._groups.values():
            for member in group.members.values():
                self._rebalancer.watch(group, member)
            if len(group.members) > self.settings.members_per_group_max:
                # The limit was lowered. A rebalance lets its members commit before some of them are turned
                # away.
                self._rebalancer.prepare(group)
        await self._commits.forget_missing_topics()

    async def stop(self) -> None:
        """Answer everyone who waits, and let what was submitted reach the disk."""
        self._runs = False
        self._ticker.stop()
        for group in self._groups.values():
            self._rebalancer.bury(group, ErrorCode.NOT_COORDINATOR)
        await self._ledger.drain()

    def tick(self) -> None:
        """Act on every time-out that has passed, unless it passed while nobody was looking."""
        self._ticker.tick()

    # -- members

    async def join(self, ask: JoinAsk) -> JoinAnswer:
        if not self._runs:
            return JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, ask.member_id)
        return await self._membership.join(ask)

    async def sync(self, ask: SyncAsk) -> SyncAnswer:
        if not self._runs:
            return SyncAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._membership.sync(ask)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if not self._runs:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._membership.heartbeat(group_id, member_id, instance_id, generation)

    async def leave(self, group_id: str, leaving: Sequence[LeaveAsk]) -> ErrorCode | list[ErrorCode]:
        """One error for each who leaves, in their order, or one for the whole request."""
        if not self._runs:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self._membership.leave(group_id, leaving)

    def forget_connection(self, connection: object) -> None:
        """A connection has closed: the member ids that were given over it and not joined with are gone."""
        self._rebalancer.forget_connection(connection)

    # -- offsets

    async def commit(
        self,
        group_id: str,
        commits: Sequence[Commit],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
        retention_ms: int = -1,
        knows_group_not_found: bool = True,
    ) -> list[ErrorCode]:
        """One error for each commit, in their order; those without one are durable when this returns."""
        if not self._runs:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(commits)
        return await self._commits.commit(
            group_id,
            commits,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            retention_ms=retention_ms,
            knows_group_not_found=knows_group_not_found,
        )

    async def commit_in(
        self,
        transaction: str,
        group_id: str,
        commits: Sequence[Commit],
        admit: Callable[[], ErrorCode],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
    ) -> list[ErrorCode]:
        """One error for each commit, in their order; those without one are durable, and count when the
        transaction is committed.
        """
        if not self._runs:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(commits)
        return await self._commits.commit_in(
            transaction,
            group_id,
            commits,
            admit,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
        )

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change this offset."""
        return self._commits.is_unstable(group_id, topic, partition)

    def fetch(self, group_id: str, topic: str, partition: int) -> OffsetRow | None:
        return self._commits.fetch(group_id, topic, partition)

    def fetch_all(self, group_id: str) -> Mapping[str, Mapping[int, OffsetRow]]:
        """By topic and partition. A view: read it before the next await."""
        return self._commits.fetch_all(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> ErrorCode | list[ErrorCode]:
        """One error for each partition, in their order, or one for the whole request."""
        if not self._runs:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self._commits.delete(group_id, partitions)

    async def forget_topic(self, name: str) -> None:
        """The topic was deleted, durably: drop every group's offsets for it."""
        await self._commits.forget_topic(name)

    async def expire(self, now_ms: int) -> list[ExpiredOffset]:
        """Drop the offsets that have outlived their retention by a time that the caller trusts."""
        expired = await self._commits.expire(now_ms)
        self.offsets_expired += len(expired)
        return expired

    # -- groups

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """All groups, or those in one of the states and of one of the types, whatever their case."""
        wanted = {state.strip().lower() for state in states}
        if types and GROUP_TYPE not in {kind.strip().lower() for kind in types}:
            return []
        return [
            group.listed()
            for group in self._groups.values()
            if not wanted or group.state.value.lower() in wanted
        ]

    def describe(self, group_id: str) -> DescribedGroup | None:
        group = self._groups.get(group_id)
        return None if group is None else group.described()

    async def delete_groups(self, group_ids: Sequence[str]) -> list[ErrorCode]:
        """One error for each, in their order; those without one are gone for good, with their offsets."""
        if not self._runs:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(group_ids)
        outcomes: list[ErrorCode | asyncio.Future[Exception | None]] = []
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is None:
                outcomes.append(ErrorCode.GROUP_ID_NOT_FOUND)
            elif group.state is not State.EMPTY:
                outcomes.append(ErrorCode.NON_EMPTY_GROUP)
            else:
                outcomes.append(self._ledger.put(GroupGone(group_id)))
        errors = []
        for outcome in outcomes:
            if isinstance(outcome, ErrorCode):
                errors.append(outcome)
            else:
                failure = await outcome
                errors.append(ErrorCode.NONE if failure is None else write_error(failure))
        return errors

    # -- what is kept and what is alive

    def _load(self) -> None:
        kept = self._ledger.kept
        for entry in kept.groups.values():
            group = Group.from_entry(entry, self.settings, self._budget)
            if group.members and group.leader not in group.members:
                raise DamagedState(
                    f"group {entry.group!r} is led by {entry.leader!r}, who is no member of it",
                    hint="restore the data directory from a backup",
                )
            self._groups[group.id] = group
        for group_id in (*kept.offsets.groups(), *kept.pending.groups()):
            self._ensure(group_id)

    def _applied(self, entry: Entry) -> None:
        if isinstance(entry, OffsetsEntry | TransactionOffsets):
            self._ensure(entry.group)
        elif isinstance(entry, GroupGone):
            group = self._groups.get(entry.group)
            # Somebody may have joined while the disk was busy. Then the group goes on, without its past.
            if group is not None and group.state is State.EMPTY and not group.pending:
                self._rebalancer.bury(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                del self._groups[entry.group]
                group.release()

    def _forget_unused(self, group: Group) -> None:
        """Nobody has ever joined the group, nor committed for it: it is as if it had not been named."""
        kept = self._ledger.kept
        if (
            group.generation == 0
            and group.id not in kept.groups
            and self._ledger.is_settled(group.id)
            and not kept.offsets.of_group(group.id)
            and not kept.pending.has_group(group.id)
            and self._groups.get(group.id) is group
        ):
            self._rebalancer.bury(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            del self._groups[group.id]
            group.release()

    def _ensure(self, group_id: str) -> None:
        """Offsets that were committed without members make a group of their own, which has no protocol."""
        if group_id not in self._groups:
            self._groups[group_id] = Group(group_id, self.settings, self._budget, self._trusted_ms())
