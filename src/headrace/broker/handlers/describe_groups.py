"""DescribeGroups: the members of groups, what they asked for and what they were given. Each group once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.response_room import ResponseRoom
from headrace.broker.sizes import text_bytes
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.groups import DescribedGroup
    from headrace.broker.request import Request

__all__ = ["handle"]

#: Read, delete, describe, describe and alter configs: without logins everyone may do what there is.
_ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
_NOT_ASKED = -(1 << 31)
_MESSAGES_SINCE = 6
_ITEM_BYTES = 256


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    operations = _ALL_OPERATIONS if message.include_authorized_operations else _NOT_ASKED
    room = ResponseRoom(broker, request)
    response = m.DescribeGroupsResponse()
    for group_id in dict.fromkeys(message.groups):
        group = broker.groups.describe(group_id)
        if group is None:
            response.groups.append(_missing(group_id, request.version, operations))
        elif not room.is_full and room.take(_size(group)):
            response.groups.append(_described(group, operations))
            await room.give_turn()
        else:
            response.groups.append(_left_out(group_id, request.version, room.bytes_max))
    return response


def _missing(group_id: str, version: int, operations: int) -> Any:
    group_of = m.DescribeGroupsResponse.DescribedGroup
    if version >= _MESSAGES_SINCE:
        return group_of(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} not found.",
            group_id=group_id,
            group_state="Dead",
        )
    # Older clients take a group that is not there for one that is dead.
    return group_of(group_id=group_id, group_state="Dead", authorized_operations=operations)


def _left_out(group_id: str, version: int, bytes_max: int) -> Any:
    answer = m.DescribeGroupsResponse.DescribedGroup(
        error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, group_id=group_id
    )
    if version >= _MESSAGES_SINCE:
        answer.error_message = (
            f"the response is full (limit {bytes_max} bytes): describe this group in another request"
        )
    return answer


def _size(group: DescribedGroup) -> int:
    size = (
        _ITEM_BYTES
        + text_bytes(group.group_id)
        + text_bytes(group.protocol_type)
        + text_bytes(group.protocol)
    )
    for member in group.members:
        size += _ITEM_BYTES + text_bytes(member.member_id) + text_bytes(member.instance_id)
        size += text_bytes(member.client_id) + len(member.subscription) + len(member.assignment)
    return size


def _described(group: DescribedGroup, operations: int) -> Any:
    member_of = m.DescribeGroupsResponse.DescribedGroupMember
    return m.DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
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
