"""Handles the membership requests: join, sync, heartbeat and leave.

The checks have the same order as in Apache Kafka, so a request with two errors gets the same error code as from Kafka.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

from headrace.broker.groups.group import Group, GroupContext, State
from headrace.broker.groups.member import Member, member_bytes
from headrace.broker.groups.rebalancer import Rebalancer, code_of_write_error
from headrace.broker.groups.results import JoinRequest, JoinResult, LeavingMember, SyncRequest, SyncResult
from headrace.broker.limits import text_bytes
from headrace.wire.codes import ErrorCode

__all__ = ["Membership"]


class Membership:
    def __init__(self, context: GroupContext, rebalancer: Rebalancer) -> None:
        self._groups = context.groups
        self._settings = context.settings
        self._budget = context.budget
        self._ledger = context.ledger
        self._trusted_ms = context.trusted_ms
        self._rebalancer = rebalancer

    # -- join

    async def join(self, request: JoinRequest) -> JoinResult:
        limits = self._settings
        if not 0 < len(request.group_id) <= limits.group_id_chars_max:
            return JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id)
        if len(request.protocol_type) > limits.protocol_type_chars_max:
            return JoinResult(ErrorCode.POLICY_VIOLATION, request.member_id)
        if not limits.session_timeout_ms_min <= request.session_timeout_ms <= limits.session_timeout_ms_max:
            return JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            if len(self._groups) >= limits.groups_max or not self._has_memory_for_group(request):
                return JoinResult(ErrorCode.POLICY_VIOLATION)
            if not (request.protocol_type and request.protocols):
                return JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            group = Group(request.group_id, limits, self._budget, self._trusted_ms())
            self._groups[group.id] = group
        if not self._has_member_slot(group, request):
            if request.member_id in group.members:
                # The limit was lowered below the size of the group. Remove the member, so that the rebalance does not
                # wait for it.
                self._rebalancer.remove_member(group, group.members[request.member_id])
                self._rebalancer.complete_join_if_ready(group)
            return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not self._has_memory(group, request):
            return JoinResult(ErrorCode.POLICY_VIOLATION, request.member_id)
        if not group.accepts(request.protocol_type, request.protocols):
            return JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        waiter: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        result = (
            self._join_existing(group, request, waiter)
            if request.member_id
            else self._join_without_id(group, request, waiter)
        )
        return result if result is not None else await waiter

    def _has_member_slot(self, group: Group, request: JoinRequest) -> bool:
        members_max = self._settings.members_per_group_max
        member = _current(group, request)
        if not request.member_id and len(group.pending) >= members_max:
            return False
        if group.state is State.PREPARING:
            # Count only the members that rejoined, so that a group shrinks to a lowered limit.
            joined = sum(m.awaits_join for m in group.members.values())
            return (member is not None and member.awaits_join) or joined < members_max
        return group.state is State.EMPTY or member is not None or len(group.members) < members_max

    def _has_memory_for_group(self, request: JoinRequest) -> bool:
        size = _size(request)
        return size <= self._settings.subscription_bytes_max and self._budget.has_room_for(
            request.group_id, request.protocol_type, size
        )

    def _has_memory(self, group: Group, request: JoinRequest) -> bool:
        size = _size(request)
        current = _current(group, request)
        added_bytes = size - (current.size_bytes if current is not None else 0)
        # A group without members takes over the protocol type of the request.
        names_bytes = (
            0 if group.members else text_bytes(request.protocol_type) - text_bytes(group.protocol_type)
        )
        return (
            size <= self._settings.subscription_bytes_max
            and group.size_bytes + added_bytes <= self._settings.group_bytes_max
            and self._budget.has_room(added_bytes + names_bytes, names_bytes)
        )

    def _join_without_id(
        self, group: Group, request: JoinRequest, waiter: asyncio.Future[JoinResult]
    ) -> JoinResult | None:
        member_id = (
            f"{request.client_id if request.instance_id is None else request.instance_id}-{uuid.uuid4()}"
        )
        if request.instance_id is not None and request.instance_id in group.static:
            self._replace_static(group, request, member_id, waiter)
        elif request.instance_id is None and request.id_required:
            if not self._rebalancer.add_pending(
                group, member_id, request.session_timeout_ms, request.connection
            ):
                # Clients retry this error after a while. By then, other pending ids may have been used or have expired.
                return JoinResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(group, request, member_id, waiter)
        return None

    def _join_existing(
        self, group: Group, request: JoinRequest, waiter: asyncio.Future[JoinResult]
    ) -> JoinResult | None:
        if request.member_id in group.pending:
            if request.instance_id is not None:
                # Only members without an instance id can have a pending member id.
                return JoinResult(ErrorCode.INVALID_REQUEST, request.member_id)
            self._add(group, request, request.member_id, waiter)
            return None
        error = group.check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return JoinResult(error, request.member_id)
        member = group.members[request.member_id]
        is_same = member.protocols == request.protocols
        if group.state is State.COMPLETING and is_same:
            # The member did not receive the first response, so repeat it.
            return group.join_result(member)
        if group.state is State.STABLE and is_same and group.leader != member.id:
            # Only the leader requests a rebalance by joining again with the same protocols.
            return group.join_result(member)
        member.park_join(waiter)
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self._rebalancer.rebalance(group)
        return None

    def _add(
        self, group: Group, request: JoinRequest, member_id: str, waiter: asyncio.Future[JoinResult]
    ) -> None:
        member = _member(request, member_id)
        member.park_join(waiter)
        self._rebalancer.add_member(group, member, request.protocol_type)

    def _replace_static(
        self, group: Group, request: JoinRequest, member_id: str, waiter: asyncio.Future[JoinResult]
    ) -> None:
        """Replace a static member that restarted. In a stable group, it keeps its assignment without a rebalance."""
        assert request.instance_id is not None
        old = group.members[group.static[request.instance_id]]
        leader = group.leader or ""
        self._rebalancer.unwatch(old)
        old.resolve_join(JoinResult(ErrorCode.FENCED_INSTANCE_ID, old.id))
        old.resolve_sync(SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        member = _member(request, member_id, old.assignment)
        member.park_join(waiter)
        group.replace(old.id, member)
        self._rebalancer.watch(group, member)
        if group.state is not State.STABLE or group.elect_protocol() != group.protocol:
            # The leader may be assigning partitions to the member's old id, so it must assign again.
            self._rebalancer.rebalance(group)
            return
        generation = group.generation
        group.update_topics()

        def on_written(error: Exception | None) -> None:
            if group.state is not State.STABLE or group.generation != generation:
                # A rebalance started meanwhile, and will respond to the parked join.
                return
            if group.members.get(member.id) is not member:
                return
            if error is None:
                result = group.join_result(member, skip_assignment=True)
                if not request.can_skip_assignment:
                    # An older client would assign partitions if the response named it as the leader, but no member
                    # waits for an assignment. So the response names the old member id as the leader.
                    result = replace(result, leader=leader, skip_assignment=False, members=())
                member.resolve_join(result)
                self._rebalancer.watch(group, member)
                return
            self._rebalancer.unwatch(member)
            member.resolve_join(JoinResult(code_of_write_error(error)))
            group.replace(member.id, old)
            group.update_topics()
            self._rebalancer.watch(group, old)

        self._ledger.submit(group.entry(), on_written)

    # -- sync

    async def sync(self, request: SyncRequest) -> SyncResult:
        if not request.group_id:
            return SyncResult(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(request.group_id)
        if group is None or group.state is State.EMPTY:
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        error = group.check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return SyncResult(error)
        if request.generation != group.generation:
            return SyncResult(ErrorCode.ILLEGAL_GENERATION)
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol, group.protocol):
            return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is State.PREPARING:
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        member = group.members[request.member_id]
        self._rebalancer.record_sync(group, member.id)
        if group.state is State.STABLE:
            return SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)
        waiter: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        member.park_sync(waiter)
        if member.id == group.leader:
            self._rebalancer.store_assignments(group, dict(request.assignments))
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

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> ErrorCode | list[ErrorCode]:
        """Remove members. Returns one error code per member, in order, or one for the whole request."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        errors = []
        for request in leaving:
            # An administrator sends only the instance id, not the member id.
            member_id = request.member_id or group.static.get(request.instance_id or "", "")
            if member_id in group.pending:
                self._rebalancer.drop_pending(group, member_id)
                errors.append(ErrorCode.NONE)
                continue
            error = group.check_member(member_id, request.instance_id)
            if error is ErrorCode.NONE:
                self._rebalancer.remove_member(group, group.members[member_id])
            errors.append(error)
        if ErrorCode.NONE not in errors or group.state is State.EMPTY:
            return errors
        # As in Kafka, rebalance even if the request removed only a pending member id.
        self._rebalancer.rebalance(group)
        failure = await _wait_until_empty_is_written(group)
        return errors if failure is None else code_of_write_error(failure)


async def _wait_until_empty_is_written(group: Group) -> Exception | None:
    """If the group is empty, wait until the journal has recorded that. Returns the error if the write failed."""
    return (
        await group.empty_state_written
        if group.state is State.EMPTY and group.empty_state_written is not None
        else None
    )


def _size(request: JoinRequest) -> int:
    """Return the estimated memory of the member. A new member's id is derived from its instance id or client id."""
    member_id = request.member_id or request.instance_id or request.client_id
    return member_bytes(member_id, request.instance_id, request.client_id, request.protocols)


def _current(group: Group, request: JoinRequest) -> Member | None:
    """Return the existing member that sent the request, or the static member that it would replace."""
    return group.members.get(request.member_id or group.static.get(request.instance_id or "", ""))


def _member(request: JoinRequest, member_id: str, assignment: bytes = b"") -> Member:
    return Member(
        member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        assignment=assignment,
    )


def _differs(sent: str | None, current: str | None) -> bool:
    return sent is not None and current is not None and sent != current
