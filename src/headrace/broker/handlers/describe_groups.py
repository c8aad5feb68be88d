"""DescribeGroups: the members of groups, what they asked for and what they were given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

#: Read, delete, describe, describe and alter configs: without logins everyone may do what there is.
_ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
_NOT_ASKED = -(1 << 31)


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    operations = _ALL_OPERATIONS if message.include_authorized_operations else _NOT_ASKED
    return m.DescribeGroupsResponse(
        groups=[_describe(broker, group_id, request.version, operations) for group_id in message.groups]
    )


def _describe(broker: Broker, group_id: str, version: int, operations: int) -> Any:
    group_of = m.DescribeGroupsResponse.DescribedGroup
    group = broker.groups.describe(group_id)
    if group is None:
        if version >= 6:
            return group_of(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} not found.",
                group_id=group_id,
                group_state="Dead",
            )
        # Older clients take a group that is not there for one that is dead.
        return group_of(group_id=group_id, group_state="Dead", authorized_operations=operations)
    member_of = m.DescribeGroupsResponse.DescribedGroupMember
    return group_of(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            member_of(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.subscription,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )
