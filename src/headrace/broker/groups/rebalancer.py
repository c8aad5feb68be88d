"""When a group moves: the rules of the rebalance, and what each time-out does.

A rebalance has two phases. Members join until all are there or the longest of their rebalance time-outs is
over; whoever is missing then is out (static members stay until their session ends). Then each asks for its
assignment, which the leader brings. The assignment is durable before anyone is given it, so a crash cannot
hand out the same generation twice with different assignments.

Everything here runs on the event loop without waiting: the coordinator's state changes between two awaits of
nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.broker.groups.answers import JoinAnswer, SyncAnswer
from headrace.broker.groups.budget import Budget
from headrace.broker.groups.group import Group, State
from headrace.broker.groups.ledger import Ledger
from headrace.broker.groups.member import Member
from headrace.broker.groups.pending_members import PendingMembers
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.timers import Timers
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

__all__ = ["Rebalancer", "write_error"]


def write_error(error: Exception) -> ErrorCode:
    """What a client is told when the journal took no entry: as by a Kafka whose disk failed, to ask again."""
    return ErrorCode.NOT_COORDINATOR if isinstance(error, StorageError) else ErrorCode.UNKNOWN_SERVER_ERROR


class Rebalancer:
    def __init__(
        self,
        settings: GroupSettings,
        timers: Timers,
        ledger: Ledger,
        budget: Budget,
        trusted_ms: Callable[[], int],
        unused: Callable[[Group], None],
    ) -> None:
        """``unused`` is called with a group that has no members and in which nobody holds an id any more."""
        self._unused = unused
        self._settings = settings
        self._timers = timers
        self._budget = budget
        self._pending = PendingMembers(timers, settings.pending_members_bytes_max)
        self._ledger = ledger
        self._trusted_ms = trusted_ms

    # -- members come and go

    def add_pending(
        self, group: Group, member_id: str, session_timeout_ms: int, connection: object | None
    ) -> bool:
        """Note an id that is given out, for one session time-out; false if there is no room for it."""
        if not self._pending.has_room(member_id):
            if group.state is State.EMPTY and not group.pending:
                self._unused(group)
            return False
        forget = partial(self._forget_pending, group, member_id)
        self._pending.add(group, member_id, session_timeout_ms, connection, forget)
        return True

    def drop_pending(self, group: Group, member_id: str) -> None:
        self._pending.remove(group, member_id)

    def forget_connection(self, connection: object) -> None:
        """Drop the ids that were given over a connection that has closed."""
        for group, member_id in self._pending.of_connection(connection):
            self._forget_pending(group, member_id)

    def add_member(self, group: Group, member: Member, protocol_type: str) -> None:
        """The member's join must be parked already."""
        if member.id in group.pending:
            self.drop_pending(group, member.id)
        if group.state is State.PREPARING and group.previous is State.EMPTY:
            group.grew_in_delay = True
        member.is_new = True
        group.add(member, protocol_type)
        # It has no id yet to send heartbeats with, and whether its connection is still there cannot be seen.
        # Clients that gave up and tried again would pile up as members, so each may wait this long only.
        self.watch(group, member, self._settings.new_member_join_timeout_ms)
        self.rebalance(group)

    def remove_member(self, group: Group, member: Member) -> None:
        """Take a member out and answer what it has parked; the caller decides about a rebalance."""
        self._timers.stop(member.session)
        member.answer_join(JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        member.answer_sync(SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.id)

    def watch(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Start the member's session again."""
        member.session.act = partial(self._fall_silent, group, member)
        self._timers.start(member.session, member.session_timeout_ms if timeout_ms is None else timeout_ms)

    def unwatch(self, member: Member) -> None:
        self._timers.stop(member.session)

    def _fall_silent(self, group: Group, member: Member) -> None:
        if group.members.get(member.id) is not member or member.is_excused:
            return
        self.remove_member(group, member)
        self._after_removal(group)

    def _forget_pending(self, group: Group, member_id: str) -> None:
        self._pending.remove(group, member_id)
        if group.state is State.PREPARING and group.all_joined:
            self.complete_join(group)
        elif group.state is State.EMPTY and not group.pending:
            self._unused(group)

    def _after_removal(self, group: Group) -> None:
        if group.state in (State.STABLE, State.COMPLETING):
            self.prepare(group)
        elif group.state is State.PREPARING and group.all_joined:
            self.complete_join(group)

    # -- first phase: joining

    def rebalance(self, group: Group) -> None:
        """The members changed: begin a rebalance, or see whether the one under way can go on."""
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
            group.grew_in_delay = False
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._delay_first(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        elif group.all_joined:
            self.complete_join(group)
        else:
            self._await_joins(group)

    def complete_join_if_ready(self, group: Group) -> None:
        """The first rebalance of a group is not cut short: its delay is for members yet to come."""
        if group.state is State.PREPARING and group.previous is not State.EMPTY and group.all_joined:
            self.complete_join(group)

    def complete_join(self, group: Group) -> None:
        """Close the first phase with whoever is there."""
        self._timers.stop(group.join_timer)
        for member in list(group.members.values()):
            if not member.awaits_join and member.instance_id is None:
                self.remove_member(group, member)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has rejoined. Their sessions decide.
            self._await_joins(group)
            return
        group.next_generation(self._trusted_ms())
        if group.state is State.EMPTY:
            # If this fails, a restart brings the last generation back and its members fall silent once more.
            group.emptied = self._ledger.put(group.entry())
            return
        for member in group.members.values():
            group.unsynced.add(member.id)
            member.is_new = False
            member.answer_join(group.join_answer(member))
            self.watch(group, member)
        group.sync_timer.act = partial(self._syncs_overdue, group)
        self._timers.start(group.sync_timer, group.rebalance_timeout_ms)

    def _await_joins(self, group: Group) -> None:
        group.join_timer.act = partial(self.complete_join, group)
        self._timers.start(group.join_timer, group.rebalance_timeout_ms)

    def _delay_first(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        if delay_ms == 0:
            self.complete_join(group)
            return
        group.join_timer.act = partial(self._first_delay_over, group, delay_ms, remaining_ms)
        self._timers.start(group.join_timer, delay_ms)

    def _first_delay_over(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        if group.grew_in_delay and remaining_ms:
            group.grew_in_delay = False
            next_delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
            self._delay_first(group, next_delay_ms, max(remaining_ms - delay_ms, 0))
        else:
            self.complete_join(group)

    # -- second phase: assignments

    def store_assignments(self, group: Group, assignments: dict[str, bytes]) -> None:
        """The leader has spoken: make it durable, then tell everyone."""
        if group.storing == group.generation:
            return
        sizes = [len(assignments.get(member_id, b"")) for member_id in group.members]
        more = sum(sizes) - sum(len(member.assignment) for member in group.members.values())
        if (
            max(sizes) > self._settings.assignment_bytes_max
            or group.size_bytes + more > self._settings.group_bytes_max
            or not self._budget.has_room(more)
        ):
            self._assignments_failed(group, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        group.storing = group.generation
        self._ledger.submit(
            group.entry(assignments), partial(self._assignments_stored, group, group.generation, assignments)
        )

    def _assignments_stored(
        self, group: Group, generation: int, assignments: dict[str, bytes], error: Exception | None
    ) -> None:
        # Somebody may have joined or left while the disk was busy; then these assignments are nobody's any
        # more.
        if group.state is not State.COMPLETING or group.generation != generation:
            return
        group.storing = None
        if error is not None:
            self._assignments_failed(group, write_error(error))
            return
        for member in group.members.values():
            group.assign(member, assignments.get(member.id, b""))
        group.enter(State.STABLE, self._trusted_ms())
        for member in group.members.values():
            answer = SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)
            if member.answer_sync(answer):
                self.watch(group, member)

    def _assignments_failed(self, group: Group, error: ErrorCode) -> None:
        self._refuse_syncs(group, error)
        self.prepare(group)

    def _refuse_syncs(self, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            group.assign(member, b"")
            if member.answer_sync(SyncAnswer(error)):
                self.watch(group, member)

    def synced(self, group: Group, member_id: str) -> None:
        """The member has asked for its assignment."""
        group.unsynced.discard(member_id)
        if not group.unsynced:
            self._timers.stop(group.sync_timer)

    def _syncs_overdue(self, group: Group) -> None:
        if group.state not in (State.COMPLETING, State.STABLE) or not group.unsynced:
            return
        for member_id in list(group.unsynced):
            self.remove_member(group, group.members[member_id])
        self.prepare(group)

    # -- the end

    def bury(self, group: Group, error: ErrorCode) -> None:
        """The group is deleted or the coordinator stops: nobody is left waiting, no timer running."""
        for timer in (group.join_timer, group.sync_timer):
            self._timers.stop(timer)
        for member_id in list(group.pending):
            self._pending.remove(group, member_id)
        group.enter(State.DEAD, self._trusted_ms())
        for member in group.members.values():
            self._timers.stop(member.session)
            member.answer_join(JoinAnswer(error, member.id))
            member.answer_sync(SyncAnswer(error))
