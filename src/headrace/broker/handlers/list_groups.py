"""ListGroups: which groups there are, by state and type if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.groups import GROUP_TYPE
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    group_of = m.ListGroupsResponse.ListedGroup
    return m.ListGroupsResponse(
        groups=[
            group_of(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=GROUP_TYPE,
            )
            for group in broker.groups.list_groups(message.states_filter, message.types_filter)
        ]
    )
