"""SyncGroup: the leader brings the assignments, everyone waits for their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.groups import SyncAsk
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    if request.version >= 5 and (message.protocol_type is None or message.protocol_name is None):
        return m.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    answer = await broker.groups.sync(
        SyncAsk(
            group_id=message.group_id,
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            generation=message.generation_id,
            protocol_type=message.protocol_type,
            protocol=message.protocol_name,
            assignments={each.member_id: bytes(each.assignment) for each in message.assignments},
        )
    )
    return m.SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )
