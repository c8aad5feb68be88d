"""The rules of a rebalance, and the actions of its timeouts.

A rebalance has two phases. In the first phase the members join. It ends when all members have joined, at the latest
after the longest of their rebalance timeouts. The coordinator then removes the members that did not join, except static
members, which remain until their session expires. In the second phase each member requests its assignment (SyncGroup),
and the leader sends the assignments of all members. The coordinator writes the assignments to disk before it sends them
to the members. So a crash cannot lead to two assignments in the same generation.

No function in this module awaits, so each state change is atomic on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.broker.groups.group import Group, GroupContext, State
from headrace.broker.groups.member import Member, PendingMembers
from headrace.broker.groups.results import JoinResult, SyncResult
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

__all__ = ["Rebalancer", "code_of_write_error"]


def code_of_write_error(error: Exception) -> ErrorCode:
    """Return the error code for a failed journal write. If the disk failed, clients retry, as in Kafka."""
    return ErrorCode.NOT_COORDINATOR if isinstance(error, StorageError) else ErrorCode.UNKNOWN_SERVER_ERROR


class Rebalancer:
    def __init__(self, context: GroupContext, on_unused: Callable[[Group], None]) -> None:
        """``on_unused`` is called with a group that has neither members nor pending member ids."""
        self._on_unused = on_unused
        self._settings = context.settings
        self._timers = context.timers
        self._budget = context.budget
        self._ledger = context.ledger
        self._trusted_ms = context.trusted_ms
        self._pending = PendingMembers(context.timers, context.settings.pending_members_bytes_max)

    # -- members

    def add_pending(
        self, group: Group, member_id: str, session_timeout_ms: int, connection: object | None
    ) -> bool:
        """Add a pending member id that expires after the session timeout.

        Returns false if the pending ids of all groups have reached their limit.
        """
        if not self._pending.has_room(member_id):
            if group.state is State.EMPTY and not group.pending:
                self._on_unused(group)
            return False
        forget = partial(self._forget_pending, group, member_id)
        self._pending.add(group, member_id, session_timeout_ms, connection, forget)
        return True

    def drop_pending(self, group: Group, member_id: str) -> None:
        self._pending.remove(group, member_id)

    def forget_connection(self, connection: object) -> None:
        """Drop the pending member ids of a closed connection."""
        for group, member_id in self._pending.of_connection(connection):
            self._forget_pending(group, member_id)

    def add_member(self, group: Group, member: Member, protocol_type: str) -> None:
        """Add a member and start or continue the rebalance. The caller must have parked the member's join."""
        if member.id in group.pending:
            self.drop_pending(group, member.id)
        if group.state is State.PREPARING and group.previous is State.EMPTY:
            group.has_new_member = True
        member.is_new = True
        group.add(member, protocol_type)
        # The member has no id yet, so it cannot send heartbeats, and its connection may be closed. If its client
        # retries, the retry adds another member, and this timeout removes the abandoned member.
        self.watch(group, member, self._settings.new_member_join_timeout_ms)
        self.rebalance(group)

    def remove_member(self, group: Group, member: Member) -> None:
        """Remove the member and fail its parked requests. The caller must start a rebalance if one is needed."""
        self._timers.stop(member.session)
        member.resolve_join(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
        member.resolve_sync(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.id)

    def watch(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Restart the member's session timer."""
        member.session.act = partial(self._expire_session, group, member)
        self._timers.start(member.session, member.session_timeout_ms if timeout_ms is None else timeout_ms)

    def unwatch(self, member: Member) -> None:
        self._timers.stop(member.session)

    def _expire_session(self, group: Group, member: Member) -> None:
        if group.members.get(member.id) is not member or member.needs_no_heartbeat:
            return
        self.remove_member(group, member)
        self._after_removal(group)

    def _forget_pending(self, group: Group, member_id: str) -> None:
        self._pending.remove(group, member_id)
        if group.state is State.PREPARING and group.all_joined:
            self.complete_join(group)
        elif group.state is State.EMPTY and not group.pending:
            self._on_unused(group)

    def _after_removal(self, group: Group) -> None:
        if group.state in (State.STABLE, State.COMPLETING):
            self.prepare(group)
        elif group.state is State.PREPARING and group.all_joined:
            self.complete_join(group)

    # -- first phase: joining

    def rebalance(self, group: Group) -> None:
        """Start a rebalance after a change of members, or check whether the current rebalance can continue."""
        if group.state is State.PREPARING:
            self.complete_join_if_ready(group)
        else:
            self.prepare(group)

    def prepare(self, group: Group) -> None:
        if group.state is State.COMPLETING:
            self._refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.unsynced.clear()
        self._timers.stop(group.sync_timer)
        is_first = group.state is State.EMPTY
        group.enter(State.PREPARING, self._trusted_ms())
        if is_first:
            group.has_new_member = False
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._delay_first(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        elif group.all_joined:
            self.complete_join(group)
        else:
            self._await_joins(group)

    def complete_join_if_ready(self, group: Group) -> None:
        """End the first phase if all members joined.

        The first rebalance of a group always waits for its full delay, so that more members can join.
        """
        if group.state is State.PREPARING and group.previous is not State.EMPTY and group.all_joined:
            self.complete_join(group)

    def complete_join(self, group: Group) -> None:
        """End the first phase and start a generation with the members that joined."""
        self._timers.stop(group.join_timer)
        for member in list(group.members.values()):
            if not member.awaits_join and member.instance_id is None:
                self.remove_member(group, member)
        if group.members and not group.elect_joined_leader():
            # Only static members remain, and none of them rejoined. Wait until they rejoin or their sessions expire.
            self._await_joins(group)
            return
        group.next_generation(self._trusted_ms())
        if group.state is State.EMPTY:
            # If this write fails, a restart restores the previous generation, and its members' sessions expire again.
            group.empty_state_written = self._ledger.put(group.entry())
            return
        for member in group.members.values():
            group.unsynced.add(member.id)
            member.is_new = False
            member.resolve_join(group.join_result(member))
            self.watch(group, member)
        group.sync_timer.act = partial(self._on_sync_timeout, group)
        self._timers.start(group.sync_timer, group.rebalance_timeout_ms)

    def _await_joins(self, group: Group) -> None:
        group.join_timer.act = partial(self.complete_join, group)
        self._timers.start(group.join_timer, group.rebalance_timeout_ms)

    def _delay_first(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        if delay_ms == 0:
            self.complete_join(group)
            return
        group.join_timer.act = partial(self._on_first_delay_over, group, delay_ms, remaining_ms)
        self._timers.start(group.join_timer, delay_ms)

    def _on_first_delay_over(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        if group.has_new_member and remaining_ms:
            group.has_new_member = False
            next_delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
            self._delay_first(group, next_delay_ms, max(remaining_ms - delay_ms, 0))
        else:
            self.complete_join(group)

    # -- second phase: assignments

    def store_assignments(self, group: Group, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignments, then send each member its own."""
        if group.storing_generation == group.generation:
            return
        sizes = [len(assignments.get(member_id, b"")) for member_id in group.members]
        added_bytes = sum(sizes) - sum(len(member.assignment) for member in group.members.values())
        if (
            max(sizes) > self._settings.assignment_bytes_max
            or group.size_bytes + added_bytes > self._settings.group_bytes_max
            or not self._budget.has_room(added_bytes)
        ):
            self._assignments_failed(group, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        group.storing_generation = group.generation
        self._ledger.submit(
            group.entry(assignments), partial(self._assignments_stored, group, group.generation, assignments)
        )

    def _assignments_stored(
        self, group: Group, generation: int, assignments: dict[str, bytes], error: Exception | None
    ) -> None:
        # If a member joined or left during the write, the assignments are obsolete.
        if group.state is not State.COMPLETING or group.generation != generation:
            return
        group.storing_generation = None
        if error is not None:
            self._assignments_failed(group, code_of_write_error(error))
            return
        for member in group.members.values():
            group.assign(member, assignments.get(member.id, b""))
        group.enter(State.STABLE, self._trusted_ms())
        for member in group.members.values():
            result = SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)
            if member.resolve_sync(result):
                self.watch(group, member)

    def _assignments_failed(self, group: Group, error: ErrorCode) -> None:
        self._refuse_syncs(group, error)
        self.prepare(group)

    def _refuse_syncs(self, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            group.assign(member, b"")
            if member.resolve_sync(SyncResult(error)):
                self.watch(group, member)

    def record_sync(self, group: Group, member_id: str) -> None:
        """Record that the member sent SyncGroup."""
        group.unsynced.discard(member_id)
        if not group.unsynced:
            self._timers.stop(group.sync_timer)

    def _on_sync_timeout(self, group: Group) -> None:
        if group.state not in (State.COMPLETING, State.STABLE) or not group.unsynced:
            return
        for member_id in list(group.unsynced):
            self.remove_member(group, group.members[member_id])
        self.prepare(group)

    # -- closing

    def close(self, group: Group, error: ErrorCode) -> None:
        """Fail the group's parked requests and stop its timers. Called when the group is deleted and at shutdown."""
        for timer in (group.join_timer, group.sync_timer):
            self._timers.stop(timer)
        for member_id in list(group.pending):
            self._pending.remove(group, member_id)
        group.enter(State.DEAD, self._trusted_ms())
        for member in group.members.values():
            self._timers.stop(member.session)
            member.resolve_join(JoinResult(error, member.id))
            member.resolve_sync(SyncResult(error))
