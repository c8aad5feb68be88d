"""The coordinator of classic consumer groups. The request handlers call it.

The coordinator owns the groups and their timeouts, and stores their durable state in a journal. Its methods return
when the result is durable. All calls run on one event loop.

Session and rebalance timeouts use the steady clock (``timers.py``). After a restart, every member has a full session
timeout to send a heartbeat. A group that was Stable is Stable again, with its generation, members and assignments. It
continues without a rebalance.

``trusted_ms`` returns the time for timestamps that are stored for days: when an offset was committed, and when the last
member left. The returned time can be ahead of the time that ``expire`` receives, but is never behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from headrace.broker.groups.commits import Commit, Commits
from headrace.broker.groups.entries import Entry, GroupDeleted, OffsetRow, OffsetsEntry, TransactionOffsets
from headrace.broker.groups.group import Group, GroupContext, State
from headrace.broker.groups.ledger import Journal, Ledger
from headrace.broker.groups.membership import Membership
from headrace.broker.groups.rebalancer import Rebalancer, code_of_write_error
from headrace.broker.groups.results import (
    DescribedGroup,
    ExpiredOffset,
    JoinRequest,
    JoinResult,
    LeavingMember,
    ListedGroup,
    SyncRequest,
    SyncResult,
)
from headrace.broker.groups.settings import Budget, GroupSettings, TopicNames
from headrace.broker.groups.timers import Ticker
from headrace.clock import Clock
from headrace.errors import DamagedState
from headrace.wire.codes import ErrorCode

__all__ = ["GROUP_TYPE", "GroupCoordinator"]

#: The only type of group that ListGroups returns.
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
        """Load the journal. Timers and requests need ``start``."""
        self.topics = topics
        self.settings = settings
        #: The number of offsets that retention removed since the start.
        self.offsets_expired = 0
        self._trusted_ms = trusted_ms
        self._groups: dict[str, Group] = {}
        self._ticker = Ticker(
            clock, interval_ms=settings.tick_interval_ms, stall_ms_min=settings.stall_ms_min
        )
        self._ledger = Ledger(journal, self._on_applied)
        self._budget = Budget(settings)
        context = GroupContext(
            groups=self._groups,
            settings=settings,
            budget=self._budget,
            ledger=self._ledger,
            timers=self._ticker.timers,
            topics=topics,
            trusted_ms=trusted_ms,
        )
        self._rebalancer = Rebalancer(context, self._forget_unused)
        self._membership = Membership(context, self._rebalancer)
        self._commits = Commits(context, self._rebalancer)
        self._is_running = False
        self._load()

    @property
    def ledger(self) -> Ledger:
        """The ledger, shared with transactions, so that one entry decides a transaction and its offsets."""
        return self._ledger

    @property
    def used_bytes(self) -> int:
        """The estimated memory of all groups."""
        return self._budget.used_bytes

    # -- start and stop

    async def start(self) -> None:
        """Start the session timers of all members, and delete the offsets of topics that do not exist."""
        self._is_running = True
        self._ticker.start()
        for group in self._groups.values():
            for member in group.members.values():
                self._rebalancer.watch(group, member)
            if len(group.members) > self.settings.members_per_group_max:
                # The limit was lowered. The rebalance lets the members commit before the group refuses some of them.
                self._rebalancer.prepare(group)
        await self._commits.forget_missing_topics()

    async def stop(self) -> None:
        """Fail all waiting requests, and wait until the submitted entries are on disk."""
        self._is_running = False
        self._ticker.stop()
        for group in self._groups.values():
            self._rebalancer.close(group, ErrorCode.NOT_COORDINATOR)
        await self._ledger.drain()

    def tick(self) -> None:
        """Run the timers that are due."""
        self._ticker.tick()

    # -- members

    async def join(self, request: JoinRequest) -> JoinResult:
        if not self._is_running:
            return JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        return await self._membership.join(request)

    async def sync(self, request: SyncRequest) -> SyncResult:
        if not self._is_running:
            return SyncResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._membership.sync(request)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if not self._is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._membership.heartbeat(group_id, member_id, instance_id, generation)

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> ErrorCode | list[ErrorCode]:
        """Remove members. Returns one error code per member, in order, or one for the whole request."""
        if not self._is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self._membership.leave(group_id, leaving)

    def forget_connection(self, connection: object) -> None:
        """Drop the pending member ids of a connection that closed."""
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
        supports_group_not_found: bool = True,
    ) -> list[ErrorCode]:
        """Commit offsets. Returns one error code per commit, in order, when the successful commits are durable."""
        if not self._is_running:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(commits)
        return await self._commits.commit(
            group_id,
            commits,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            retention_ms=retention_ms,
            supports_group_not_found=supports_group_not_found,
        )

    async def commit_in_transaction(
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
        """Store offsets that take effect when the transaction commits.

        Returns one error code per commit, in order, when the stored offsets are durable.
        """
        if not self._is_running:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(commits)
        return await self._commits.commit_in_transaction(
            transaction,
            group_id,
            commits,
            admit,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
        )

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction can still change this offset."""
        return self._commits.is_unstable(group_id, topic, partition)

    def fetch(self, group_id: str, topic: str, partition: int) -> OffsetRow | None:
        return self._commits.fetch(group_id, topic, partition)

    def fetch_all(self, group_id: str) -> Mapping[str, Mapping[int, OffsetRow]]:
        """Return the group's offsets by topic and partition. The mapping is valid until the next await."""
        return self._commits.fetch_all(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> ErrorCode | list[ErrorCode]:
        """Delete offsets. Returns one error code per partition, in order, or one for the whole request."""
        if not self._is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self._commits.delete(group_id, partitions)

    async def forget_topic(self, name: str) -> None:
        """Delete every group's offsets of a deleted topic."""
        await self._commits.forget_topic(name)

    async def expire(self, now_ms: int) -> list[ExpiredOffset]:
        """Delete the offsets whose retention is over at the trusted time ``now_ms``."""
        expired = await self._commits.expire(now_ms)
        self.offsets_expired += len(expired)
        return expired

    # -- groups

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """Return the groups, optionally only those with one of the states and types. Case does not matter."""
        filter_states = {state.strip().lower() for state in states}
        if types and GROUP_TYPE not in {kind.strip().lower() for kind in types}:
            return []
        return [
            group.to_listed()
            for group in self._groups.values()
            if not filter_states or group.state.value.lower() in filter_states
        ]

    def describe(self, group_id: str) -> DescribedGroup | None:
        group = self._groups.get(group_id)
        return None if group is None else group.describe()

    async def delete_groups(self, group_ids: Sequence[str]) -> list[ErrorCode]:
        """Delete groups and their offsets. Returns one error code per group, in order, when this is durable."""
        if not self._is_running:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(group_ids)
        outcomes: list[ErrorCode | asyncio.Future[Exception | None]] = []
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is None:
                outcomes.append(ErrorCode.GROUP_ID_NOT_FOUND)
            elif group.state is not State.EMPTY:
                outcomes.append(ErrorCode.NON_EMPTY_GROUP)
            else:
                outcomes.append(self._ledger.put(GroupDeleted(group_id)))
        errors = []
        for outcome in outcomes:
            if isinstance(outcome, ErrorCode):
                errors.append(outcome)
            else:
                failure = await outcome
                errors.append(ErrorCode.NONE if failure is None else code_of_write_error(failure))
        return errors

    # -- durable state and live groups

    def _load(self) -> None:
        state = self._ledger.state
        for entry in state.groups.values():
            group = Group.from_entry(entry, self.settings, self._budget)
            if group.members and group.leader not in group.members:
                raise DamagedState(
                    f"the leader {entry.leader!r} of group {entry.group!r} is not a member of the group",
                    hint="restore the data directory from a backup",
                )
            self._groups[group.id] = group
        for group_id in (*state.offsets.groups(), *state.pending.groups()):
            self._ensure_group(group_id)

    def _on_applied(self, entry: Entry) -> None:
        if isinstance(entry, OffsetsEntry | TransactionOffsets):
            self._ensure_group(entry.group)
        elif isinstance(entry, GroupDeleted):
            group = self._groups.get(entry.group)
            # If a member joined during the write, the group continues without its offsets.
            if group is not None and group.state is State.EMPTY and not group.pending:
                self._rebalancer.close(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                del self._groups[entry.group]
                group.release()

    def _forget_unused(self, group: Group) -> None:
        """Remove a group if no member has ever joined it and it has no offsets."""
        state = self._ledger.state
        if (
            group.generation == 0
            and group.id not in state.groups
            and self._ledger.is_settled(group.id)
            and not state.offsets.of_group(group.id)
            and not state.pending.has_group(group.id)
            and self._groups.get(group.id) is group
        ):
            self._rebalancer.close(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            del self._groups[group.id]
            group.release()

    def _ensure_group(self, group_id: str) -> None:
        """Create the group unless it exists. A group that only commits offsets has no members and no protocol."""
        if group_id not in self._groups:
            self._groups[group_id] = Group(group_id, self.settings, self._budget, self._trusted_ms())
