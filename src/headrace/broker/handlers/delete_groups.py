"""DeleteGroups: remove groups without members, and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    group_ids = list(dict.fromkeys(request.message.groups_names))
    errors = await broker.groups.delete_groups(group_ids)
    result_of = m.DeleteGroupsResponse.DeletableGroupResult
    return m.DeleteGroupsResponse(
        results=[
            result_of(group_id=group_id, error_code=error)
            for group_id, error in zip(group_ids, errors, strict=True)
        ]
    )
