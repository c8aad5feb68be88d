"""APIs for the members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.groups import JoinRequest, LeavingMember, SyncRequest
from headrace.broker.permissions import Handler, Operation, Permission, Resource
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request

__all__ = ["HANDLERS"]

_LIMIT_ERRORS = (
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


async def join_group(broker: Broker, request: Request) -> Any:
    """Add the client to a group, and respond when the other members have joined the new generation."""
    message = request.message
    version = request.version
    result = await broker.groups.join(
        JoinRequest(
            group_id=message.group_id,
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            client_id=request.client_id or "",
            client_host=f"/{request.client_host}",
            session_timeout_ms=message.session_timeout_ms,
            # Version 0 uses the session timeout for the rebalance too.
            rebalance_timeout_ms=message.session_timeout_ms if version == 0 else message.rebalance_timeout_ms,
            protocol_type=message.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
            id_required=version >= 4,
            can_skip_assignment=version >= 9,
            connection=request.connection,
        )
    )
    if result.error in _LIMIT_ERRORS:
        broker.notices.request_limited(
            "group-limit",
            f"refused JoinGroup from {request.client_host} for group {message.group_id[:80]!r}: the member, the group,"
            " or all groups together would exceed a limit",
            {"client": request.client_host},
        )
    member = m.JoinGroupResponse.JoinGroupResponseMember
    return m.JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        # Before version 7 the name cannot be null.
        protocol_name=result.protocol if version >= 7 else result.protocol or "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            member(member_id=member_id, group_instance_id=instance_id, metadata=subscription)
            for member_id, instance_id, subscription in result.members
        ],
    )


async def sync_group(broker: Broker, request: Request) -> Any:
    """Receive the assignments from the group leader, and return each member's own assignment."""
    message = request.message
    if request.version >= 5 and (message.protocol_type is None or message.protocol_name is None):
        return m.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    result = await broker.groups.sync(
        SyncRequest(
            group_id=message.group_id,
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            generation=message.generation_id,
            protocol_type=message.protocol_type,
            protocol=message.protocol_name,
            assignments={member.member_id: bytes(member.assignment) for member in message.assignments},
        )
    )
    return m.SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


async def heartbeat(broker: Broker, request: Request) -> Any:
    """Record that a member is alive. The response reports whether the member must join again."""
    message = request.message
    error = broker.groups.heartbeat(
        message.group_id, message.member_id, message.group_instance_id, message.generation_id
    )
    return m.HeartbeatResponse(error_code=error)


async def leave_group(broker: Broker, request: Request) -> Any:
    """Remove a member that leaves, or the members whose instance ids an administrator sends."""
    message = request.message
    is_batch = request.version >= 3
    leaving = (
        [LeavingMember(member.member_id, member.group_instance_id) for member in message.members]
        if is_batch
        else [LeavingMember(message.member_id)]
    )
    errors = await broker.groups.leave(message.group_id, leaving)
    if isinstance(errors, ErrorCode):
        return m.LeaveGroupResponse(error_code=errors)
    if not is_batch:
        return m.LeaveGroupResponse(error_code=errors[0])
    new_response = m.LeaveGroupResponse.MemberResponse
    return m.LeaveGroupResponse(
        members=[
            new_response(member_id=member.member_id, group_instance_id=member.instance_id, error_code=error)
            for member, error in zip(leaving, errors, strict=True)
        ]
    )


HANDLERS = {
    Api.JOIN_GROUP: Handler(join_group, (Permission(Operation.READ, Resource.GROUP),)),
    Api.SYNC_GROUP: Handler(sync_group, (Permission(Operation.READ, Resource.GROUP),)),
    Api.HEARTBEAT: Handler(heartbeat, (Permission(Operation.READ, Resource.GROUP),)),
    Api.LEAVE_GROUP: Handler(leave_group, (Permission(Operation.READ, Resource.GROUP),)),
}
