"""LeaveGroup: a member goes, or an administrator removes members by their instance ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.groups import LeaveAsk
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    is_batch = request.version >= 3
    leaving = (
        [LeaveAsk(each.member_id, each.group_instance_id) for each in message.members]
        if is_batch
        else [LeaveAsk(message.member_id)]
    )
    errors = await broker.groups.leave(message.group_id, leaving)
    if isinstance(errors, ErrorCode):
        return m.LeaveGroupResponse(error_code=errors)
    if not is_batch:
        return m.LeaveGroupResponse(error_code=errors[0])
    member = m.LeaveGroupResponse.MemberResponse
    return m.LeaveGroupResponse(
        members=[
            member(member_id=ask.member_id, group_instance_id=ask.instance_id, error_code=error)
            for ask, error in zip(leaving, errors, strict=True)
        ]
    )
