"""APIs that describe, list and delete consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.groups import GROUP_TYPE
from headrace.broker.limits import text_bytes
from headrace.broker.net.responses import ResponseRoom
from headrace.broker.permissions import GROUP_OPERATIONS, Handler, Operation, Permission, Resource
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.groups import DescribedGroup
    from headrace.broker.net.request import Request

__all__ = ["HANDLERS"]

_NOT_REQUESTED = -(1 << 31)
_MESSAGES_SINCE = 6
_ITEM_BYTES = 256


async def describe_groups(broker: Broker, request: Request) -> Any:
    """Return the members of groups with their subscriptions and assignments. The response has each group once."""
    message = request.message
    operations = GROUP_OPERATIONS if message.include_authorized_operations else _NOT_REQUESTED
    await broker.turns.take()
    room = ResponseRoom(broker, request)
    response = m.DescribeGroupsResponse()
    for group_id in dict.fromkeys(message.groups):
        group = None if room.is_full else broker.groups.describe(group_id)
        if room.is_full or (group is not None and not room.take(_size(group))):
            response.groups.append(_omitted_group(group_id, request.version, room.bytes_max))
        elif group is None:
            response.groups.append(_missing_group(group_id, request.version, operations))
        else:
            response.groups.append(_encode_group(group, operations))
        await room.yield_if_due()
    return response


def _missing_group(group_id: str, version: int, operations: int) -> Any:
    new_group = m.DescribeGroupsResponse.DescribedGroup
    if version >= _MESSAGES_SINCE:
        return new_group(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} not found.",
            group_id=group_id,
            group_state="Dead",
        )
    # As in Kafka, older versions report a missing group as Dead, without an error.
    return new_group(group_id=group_id, group_state="Dead", authorized_operations=operations)


def _omitted_group(group_id: str, version: int, bytes_max: int) -> Any:
    group = m.DescribeGroupsResponse.DescribedGroup(
        error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, group_id=group_id
    )
    if version >= _MESSAGES_SINCE:
        group.error_message = (
            f"the response is full (limit {bytes_max} bytes): describe this group in another request"
        )
    return group


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


def _encode_group(group: DescribedGroup, operations: int) -> Any:
    new_member = m.DescribeGroupsResponse.DescribedGroupMember
    return m.DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            new_member(
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


async def list_groups(broker: Broker, request: Request) -> Any:
    """Return the groups, optionally filtered by state and type."""
    message = request.message
    new_group = m.ListGroupsResponse.ListedGroup
    await broker.turns.take()
    return m.ListGroupsResponse(
        groups=[
            new_group(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=GROUP_TYPE,
            )
            for group in broker.groups.list_groups(message.states_filter, message.types_filter)
        ]
    )


async def delete_groups(broker: Broker, request: Request) -> Any:
    """Delete groups that have no members, and their offsets."""
    group_ids = list(dict.fromkeys(request.message.groups_names))
    errors = await broker.groups.delete_groups(group_ids)
    new_result = m.DeleteGroupsResponse.DeletableGroupResult
    return m.DeleteGroupsResponse(
        results=[
            new_result(group_id=group_id, error_code=error)
            for group_id, error in zip(group_ids, errors, strict=True)
        ]
    )


HANDLERS = {
    Api.DESCRIBE_GROUPS: Handler(describe_groups, (Permission(Operation.DESCRIBE, Resource.GROUP),)),
    Api.LIST_GROUPS: Handler(list_groups, (Permission(Operation.DESCRIBE, Resource.GROUP),)),
    Api.DELETE_GROUPS: Handler(delete_groups, (Permission(Operation.DELETE, Resource.GROUP),)),
}
