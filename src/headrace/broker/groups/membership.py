"""Joining, syncing, heartbeats and leaving: what each request is checked for, and what it then sets off.

The order of the checks is Apache Kafka's, because a request that is wrong in two ways must get the same
answer from both.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.broker.groups.answers import JoinAnswer, JoinAsk, LeaveAsk, SyncAnswer, SyncAsk
from headrace.broker.groups.budget import Budget
from headrace.broker.groups.group import Group, State
from headrace.broker.groups.ledger import Ledger
from headrace.broker.groups.member import Member, member_bytes
from headrace.broker.groups.rebalancer import Rebalancer, write_error
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.sizes import text_bytes
from headrace.wire.codes import ErrorCode

__all__ = ["Membership"]


class Membership:
    def __init__(
        self,
        groups: dict[str, Group],
        settings: GroupSettings,
        rebalancer: Rebalancer,
        ledger: Ledger,
        budget: Budget,
        trusted_ms: Callable[[], int],
    ) -> None:
        self._budget = budget
        self._groups = groups
        self._settings = settings
        self._rebalancer = rebalancer
        self._ledger = ledger
        self._trusted_ms = trusted_ms

    # -- join

    async def join(self, ask: JoinAsk) -> JoinAnswer:
        limits = self._settings
        if not 0 < len(ask.group_id) <= limits.group_id_chars_max:
            return JoinAnswer(ErrorCode.INVALID_GROUP_ID, ask.member_id)
        if len(ask.protocol_type) > limits.protocol_type_chars_max:
            return JoinAnswer(ErrorCode.POLICY_VIOLATION, ask.member_id)
        if not limits.session_timeout_ms_min <= ask.session_timeout_ms <= limits.session_timeout_ms_max:
            return JoinAnswer(ErrorCode.INVALID_SESSION_TIMEOUT, ask.member_id)
        group = self._groups.get(ask.group_id)
        if group is None:
            if ask.member_id:
                return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, ask.member_id)
            if len(self._groups) >= limits.groups_max or not self._fits_new(ask):
                return JoinAnswer(ErrorCode.POLICY_VIOLATION)
            if not (ask.protocol_type and ask.protocols):
                return JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            group = Group(ask.group_id, limits, self._budget, self._trusted_ms())
            self._groups[group.id] = group
        if not self._has_room(group, ask):
            if ask.member_id in group.members:
                # The group shrinks to its limit: whoever comes too late is out, and no longer waited for.
                self._rebalancer.remove_member(group, group.members[ask.member_id])
                self._rebalancer.complete_join_if_ready(group)
            return JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not self._fits(group, ask):
            return JoinAnswer(ErrorCode.POLICY_VIOLATION, ask.member_id)
        if not group.accepts(ask.protocol_type, ask.protocols):
            return JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ask.member_id)
        waiter: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        answer = self._join_known(group, ask, waiter) if ask.member_id else self._join_new(group, ask, waiter)
        return answer if answer is not None else await waiter

    def _has_room(self, group: Group, ask: JoinAsk) -> bool:
        most = self._settings.members_per_group_max
        member = _current(group, ask)
        if not ask.member_id and len(group.pending) >= most:
            return False
        if group.state is State.PREPARING:
            # Those who have rejoined are counted, not those who were members: so a group that is over its
            # limit, because the limit was lowered, is cut back to it.
            joined = sum(m.awaits_join for m in group.members.values())
            return (member is not None and member.awaits_join) or joined < most
        return group.state is State.EMPTY or member is not None or len(group.members) < most

    def _fits_new(self, ask: JoinAsk) -> bool:
        size = _size(ask)
        return size <= self._settings.subscription_bytes_max and self._budget.has_room_for(
            ask.group_id, ask.protocol_type, size
        )

    def _fits(self, group: Group, ask: JoinAsk) -> bool:
        size = _size(ask)
        before = _current(group, ask)
        more = size - (before.size_bytes if before is not None else 0)
        # Without members the group takes the protocol type of the one who asks.
        names = 0 if group.members else text_bytes(ask.protocol_type) - text_bytes(group.protocol_type)
        return (
            size <= self._settings.subscription_bytes_max
            and group.size_bytes + more <= self._settings.group_bytes_max
            and self._budget.has_room(more + names, names)
        )

    def _join_new(self, group: Group, ask: JoinAsk, waiter: asyncio.Future[JoinAnswer]) -> JoinAnswer | None:
        member_id = f"{ask.client_id if ask.instance_id is None else ask.instance_id}-{uuid.uuid4()}"
        if ask.instance_id is not None and ask.instance_id in group.static:
            self._replace_static(group, ask, member_id, waiter)
        elif ask.instance_id is None and ask.id_required:
            if not self._rebalancer.add_pending(group, member_id, ask.session_timeout_ms, ask.connection):
                # Ids that were given out come back or expire: clients wait a little and ask again.
                return JoinAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(group, ask, member_id, waiter)
        return None

    def _join_known(
        self, group: Group, ask: JoinAsk, waiter: asyncio.Future[JoinAnswer]
    ) -> JoinAnswer | None:
        if ask.member_id in group.pending:
            if ask.instance_id is not None:
                # Ids are given out in advance to members without an instance id only.
                return JoinAnswer(ErrorCode.INVALID_REQUEST, ask.member_id)
            self._add(group, ask, ask.member_id, waiter)
            return None
        error = group.check_member(ask.member_id, ask.instance_id)
        if error is not ErrorCode.NONE:
            return JoinAnswer(error, ask.member_id)
        member = group.members[ask.member_id]
        is_same = member.protocols == ask.protocols
        if group.state is State.COMPLETING and is_same:
            # Its first answer was lost on the way.
            return group.join_answer(member)
        if group.state is State.STABLE and is_same and group.leader != member.id:
            # A leader that joins again wants a rebalance, for reasons of its own; a follower without news
            # does not.
            return group.join_answer(member)
        member.park_join(waiter)
        group.update(member, ask.protocols, ask.rebalance_timeout_ms, ask.session_timeout_ms)
        self._rebalancer.rebalance(group)
        return None

    def _add(self, group: Group, ask: JoinAsk, member_id: str, waiter: asyncio.Future[JoinAnswer]) -> None:
        member = _member(ask, member_id)
        member.park_join(waiter)
        self._rebalancer.add_member(group, member, ask.protocol_type)

    def _replace_static(
        self, group: Group, ask: JoinAsk, member_id: str, waiter: asyncio.Future[JoinAnswer]
    ) -> None:
        """A static member started again. In a stable group it goes on where it was, unnoticed by others."""
        assert ask.instance_id is not None
        old = group.members[group.static[ask.instance_id]]
        leader = group.leader or ""
        self._rebalancer.unwatch(old)
        old.answer_join(JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old.id))
        old.answer_sync(SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
        member = _member(ask, member_id, old.assignment)
        member.park_join(waiter)
        group.replace(old.id, member)
        self._rebalancer.watch(group, member)
        if group.state is not State.STABLE or group.elect_protocol() != group.protocol:
            # While assignments are being made the leader knows it under its old id, so they have to be made
            # again.
            self._rebalancer.rebalance(group)
            return
        generation = group.generation
        group.note_topics()

        def stored(error: Exception | None) -> None:
            if group.state is not State.STABLE or group.generation != generation:
                # A rebalance has begun meanwhile. It counts the join that is parked here, and will answer it.
                return
            if group.members.get(member.id) is not member:
                return
            if error is None:
                answer = group.join_answer(member, skip_assignment=True)
                if not ask.can_skip_assignment:
                    # An older client that hears that it leads makes assignments, and nobody waits for any.
                    answer = replace(answer, leader=leader, skip_assignment=False, members=())
                member.answer_join(answer)
                self._rebalancer.watch(group, member)
                return
            self._rebalancer.unwatch(member)
            member.answer_join(JoinAnswer(write_error(error)))
            group.replace(member.id, old)
            group.note_topics()
            self._rebalancer.watch(group, old)

        self._ledger.submit(group.entry(), stored)

    # -- sync

    async def sync(self, ask: SyncAsk) -> SyncAnswer:
        if not ask.group_id:
            return SyncAnswer(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(ask.group_id)
        if group is None or group.state is State.EMPTY:
            return SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        error = group.check_member(ask.member_id, ask.instance_id)
        if error is not ErrorCode.NONE:
            return SyncAnswer(error)
        if ask.generation != group.generation:
            return SyncAnswer(ErrorCode.ILLEGAL_GENERATION)
        if _differs(ask.protocol_type, group.protocol_type) or _differs(ask.protocol, group.protocol):
            return SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is State.PREPARING:
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
        member = group.members[ask.member_id]
        self._rebalancer.synced(group, member.id)
        if group.state is State.STABLE:
            return SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)
        waiter: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        member.park_sync(waiter)
        if member.id == group.leader:
            self._rebalancer.store_assignments(group, dict(ask.assignments))
        return await waiter

    # -- heartbeat

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalancer.watch(group, group.members[member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else ErrorCode.NONE

    # -- leave

    async def leave(self, group_id: str, leaving: Sequence[LeaveAsk]) -> ErrorCode | list[ErrorCode]:
        """One error for each who leaves, in their order, or one for the whole request."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        errors = []
        for ask in leaving:
            # Administrators name the instance and leave the member id empty: they do not know it.
            member_id = ask.member_id or group.static.get(ask.instance_id or "", "")
            if member_id in group.pending:
                self._rebalancer.drop_pending(group, member_id)
                errors.append(ErrorCode.NONE)
                continue
            error = group.check_member(member_id, ask.instance_id)
            if error is ErrorCode.NONE:
                self._rebalancer.remove_member(group, group.members[member_id])
            errors.append(error)
        if ErrorCode.NONE not in errors or group.state is State.EMPTY:
            return errors
        # Kafka rebalances also if only an id went that nobody had joined with yet.
        self._rebalancer.rebalance(group)
        failure = await _emptied(group)
        return errors if failure is None else write_error(failure)


async def _emptied(group: Group) -> Exception | None:
    """If nobody is left, wait until the journal has that."""
    return await group.emptied if group.state is State.EMPTY and group.emptied is not None else None


def _size(ask: JoinAsk) -> int:
    """What the member will take; an id that it has yet to be given is made from its client or instance id."""
    member_id = ask.member_id or ask.instance_id or ask.client_id
    return member_bytes(member_id, ask.instance_id, ask.client_id, ask.protocols)


def _current(group: Group, ask: JoinAsk) -> Member | None:
    """The member that asks, or whose place it takes."""
    return group.members.get(ask.member_id or group.static.get(ask.instance_id or "", ""))


def _member(ask: JoinAsk, member_id: str, assignment: bytes = b"") -> Member:
    return Member(
        member_id,
        instance_id=ask.instance_id,
        client_id=ask.client_id,
        client_host=ask.client_host,
        rebalance_timeout_ms=ask.rebalance_timeout_ms,
        session_timeout_ms=ask.session_timeout_ms,
        protocols=ask.protocols,
        assignment=assignment,
    )


def _differs(asked: str | None, current: str | None) -> bool:
    return asked is not None and current is not None and asked != current
