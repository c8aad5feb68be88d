"""JoinGroup: become a member of a group, and wait for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.groups import JoinAsk
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_LIMITED = (
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    version = request.version
    answer = await broker.groups.join(
        JoinAsk(
            group_id=message.group_id,
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            client_id=request.client_id or "",
            client_host=f"/{request.client_host}",
            session_timeout_ms=message.session_timeout_ms,
            # The first version has one time-out for both purposes.
            rebalance_timeout_ms=message.session_timeout_ms if version == 0 else message.rebalance_timeout_ms,
            protocol_type=message.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
            id_required=version >= 4,
            can_skip_assignment=version >= 9,
            connection=request.connection,
        )
    )
    if answer.error in _LIMITED:
        broker.notices.limit(
            "group-limit",
            f"JoinGroup from {request.client_host} for group {message.group_id[:80]!r} is refused: its member, the"
            f" group or all groups take more than their limit",
            {"client": request.client_host},
        )
    member = m.JoinGroupResponse.JoinGroupResponseMember
    return m.JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        # Only newer versions can say that there is none.
        protocol_name=answer.protocol if version >= 7 else answer.protocol or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            member(member_id=member_id, group_instance_id=instance_id, metadata=subscription)
            for member_id, instance_id, subscription in answer.members
        ],
    )
