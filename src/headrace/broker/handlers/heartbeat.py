"""Heartbeat: a member is alive, and hears whether it must join again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    error = broker.groups.heartbeat(
        message.group_id, message.member_id, message.group_instance_id, message.generation_id
    )
    return m.HeartbeatResponse(error_code=error)
