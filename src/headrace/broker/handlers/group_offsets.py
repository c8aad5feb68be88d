"""APIs that commit, fetch and delete the offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.broker.groups import GroupCoordinator, OffsetRow
from headrace.broker.limits import text_bytes
from headrace.broker.net.responses import ResponseRoom, partition_errors, partitions_once
from headrace.broker.permissions import Handler, Operation, Permission, Resource
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request

__all__ = ["HANDLERS"]


async def offset_commit(broker: Broker, request: Request) -> Any:
    """Commit offsets of a group, and respond when they are on disk."""
    message = request.message
    version = request.version
    by_id = version >= 10
    names = [
        broker.groups.topics.name_of(topic.topic_id) if by_id else topic.name for topic in message.topics
    ]
    errors = iter(
        await broker.groups.commit(
            message.group_id,
            [
                (
                    name,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata,
                )
                for name, topic in zip(names, message.topics, strict=True)
                if name is not None
                for partition in topic.partitions
            ],
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            generation=message.generation_id_or_member_epoch,
            retention_ms=message.retention_time_ms,
            supports_group_not_found=version >= 9,
        )
    )
    new_partition = m.OffsetCommitResponse.OffsetCommitResponsePartition
    new_topic = m.OffsetCommitResponse.OffsetCommitResponseTopic
    return m.OffsetCommitResponse(
        topics=[
            new_topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    new_partition(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_ID if name is None else next(errors),
                    )
                    for partition in topic.partitions
                ],
            )
            for name, topic in zip(names, message.topics, strict=True)
        ]
    )


_NO_OFFSET = -1
_GROUPS_SINCE = 8
_IDS_SINCE = 10
_PARTITION_BYTES = 192
_PARTITIONS_WITHOUT_TURN_MAX = 200

_Rows = list[tuple[int, OffsetRow | None, bool]]
"""For each partition: its index, its committed offset if any, and whether an open transaction can change the offset.

The last item is always false if the client does not require stable offsets.
"""
_TopicRows = tuple[str | bytes, str | None, _Rows]
"""A topic's name or id as in the request, its name (``None`` if the id is unknown), and its rows."""


async def offset_fetch(broker: Broker, request: Request) -> Any:
    """Return committed offsets of groups.

    Up to version 7 a request has one group, from version 8 on several. Without topics, the request means all partitions
    for which the group has committed offsets. The offset is -1 if none was committed, and for an unknown group or topic
    name. An unknown topic id is an error. If the client requires stable offsets, an offset that an open transaction can
    still change is an error too. The response has each group and each partition once.
    """
    message = request.message
    groups = broker.groups
    if _is_about_many(message):
        await broker.turns.take()
    if request.version >= _GROUPS_SINCE:
        return await _fetch_groups(broker, request, by_id=request.version >= _IDS_SINCE)
    new_topic = m.OffsetFetchResponse.OffsetFetchResponseTopic
    new_partition = m.OffsetFetchResponse.OffsetFetchResponsePartition
    if message.topics is None:
        topics = _all_rows(groups, message.group_id, message.require_stable)
    else:
        requested = partitions_once((topic.name, topic.partition_indexes) for topic in message.topics)
        topics = [
            (name, _requested_rows(groups, message.group_id, name, indexes, message.require_stable))
            for name, indexes in requested.items()
        ]
    return m.OffsetFetchResponse(
        topics=[new_topic(name=name, partitions=_partitions(new_partition, rows)) for name, rows in topics]
    )


def _is_about_many(message: Any) -> bool:
    """Return whether a request is for several groups, for all offsets of a group, or for many partitions."""
    groups = message.groups or (message,)
    return (
        len(groups) > 1
        or any(group.topics is None for group in groups)
        or sum(len(topic.partition_indexes) for topic in groups[0].topics) > _PARTITIONS_WITHOUT_TURN_MAX
    )


async def _fetch_groups(broker: Broker, request: Request, *, by_id: bool) -> Any:
    message = request.message
    room = ResponseRoom(broker, request)
    new_group = m.OffsetFetchResponse.OffsetFetchResponseGroup
    response = m.OffsetFetchResponse()
    for group_id, topics in _groups_once(message.groups, by_id=by_id).items():
        if not room.is_full:
            topics_with_rows = _group_rows(
                broker.groups, group_id, topics, by_id=by_id, stable=message.require_stable
            )
            if room.take(_size(topics_with_rows)):
                response.groups.append(
                    new_group(group_id=group_id, topics=[_topic(*topic) for topic in topics_with_rows])
                )
                await room.yield_if_due()
                continue
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        response.groups.append(new_group(group_id=group_id, error_code=error))
    return response


def _groups_once(groups: Iterable[Any], *, by_id: bool) -> dict[str, dict[str | bytes, list[int]] | None]:
    """Return the requested partitions of each group, by topic name or id. ``None`` means all partitions."""
    items: dict[str, list[tuple[str | bytes, list[int]]] | None] = {}
    for group in groups:
        requested = items.setdefault(group.group_id, [])
        if group.topics is None or requested is None:
            items[group.group_id] = None
        else:
            requested += [
                (topic.topic_id if by_id else topic.name, topic.partition_indexes) for topic in group.topics
            ]
    return {
        group_id: None if requested is None else partitions_once(requested)
        for group_id, requested in items.items()
    }


def _group_rows(
    groups: GroupCoordinator,
    group_id: str,
    topics: dict[str | bytes, list[int]] | None,
    *,
    by_id: bool,
    stable: bool,
) -> list[_TopicRows]:
    topics_with_rows: list[_TopicRows] = []
    if topics is None:
        for name, rows in _all_rows(groups, group_id, stable):
            topic = groups.topics.id_of(name) if by_id else name
            # The topic has no id if it was deleted meanwhile. This version cannot refer to a topic by name.
            if topic is not None:
                topics_with_rows.append((topic, name, rows))
        return topics_with_rows
    for requested, indexes in topics.items():
        topic_name = groups.topics.name_of(requested) if isinstance(requested, bytes) else requested
        if topic_name is None:
            topics_with_rows.append((requested, None, [(index, None, False) for index in indexes]))
        else:
            topics_with_rows.append(
                (requested, topic_name, _requested_rows(groups, group_id, topic_name, indexes, stable))
            )
    return topics_with_rows


def _size(topics_with_rows: list[_TopicRows]) -> int:
    size = 0
    for _, name, rows in topics_with_rows:
        size += text_bytes(name) + _PARTITION_BYTES * (1 + len(rows))
        size += sum(text_bytes(row.metadata) for _, row, _ in rows if row is not None)
    return size


def _topic(topic: str | bytes, name: str | None, rows: _Rows) -> Any:
    new_partition = m.OffsetFetchResponse.OffsetFetchResponsePartitions
    error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
    partitions = _partitions(new_partition, rows, error)
    new_topic = m.OffsetFetchResponse.OffsetFetchResponseTopics
    if isinstance(topic, bytes):
        return new_topic(topic_id=topic, partitions=partitions)
    return new_topic(name=topic, partitions=partitions)


def _all_rows(groups: GroupCoordinator, group_id: str, stable: bool) -> list[tuple[str, _Rows]]:
    return [
        (
            name,
            [
                (index, row, stable and groups.is_unstable(group_id, name, index))
                for index, row in rows.items()
            ],
        )
        for name, rows in groups.fetch_all(group_id).items()
    ]


def _requested_rows(
    groups: GroupCoordinator, group_id: str, topic: str, indexes: list[int], stable: bool
) -> _Rows:
    return [
        (
            index,
            groups.fetch(group_id, topic, index),
            stable and groups.is_unstable(group_id, topic, index),
        )
        for index in indexes
    ]


def _partitions(new_partition: Any, rows: _Rows, error: ErrorCode = ErrorCode.NONE) -> list[Any]:
    partitions = []
    for index, row, is_unstable in rows:
        if is_unstable:
            partitions.append(
                new_partition(
                    partition_index=index,
                    committed_offset=_NO_OFFSET,
                    committed_leader_epoch=-1,
                    metadata="",
                    error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
                )
            )
            continue
        partitions.append(
            new_partition(
                partition_index=index,
                committed_offset=_NO_OFFSET if row is None else row.offset,
                committed_leader_epoch=-1 if row is None else row.leader_epoch,
                metadata="" if row is None else row.metadata,
                error_code=error,
            )
        )
    return partitions


async def offset_delete(broker: Broker, request: Request) -> Any:
    """Delete a group's committed offsets for topics to which the group is not subscribed."""
    message = request.message
    partitions = [
        (topic.name, partition.partition_index) for topic in message.topics for partition in topic.partitions
    ]
    outcome = await broker.groups.delete_offsets(message.group_id, partitions)
    if isinstance(outcome, ErrorCode):
        return m.OffsetDeleteResponse(error_code=outcome)
    topics = partition_errors(
        message.topics,
        outcome,
        m.OffsetDeleteResponse.OffsetDeleteResponseTopic,
        m.OffsetDeleteResponse.OffsetDeleteResponsePartition,
    )
    return m.OffsetDeleteResponse(topics=topics)


HANDLERS = {
    Api.OFFSET_COMMIT: Handler(
        offset_commit,
        (
            Permission(Operation.READ, Resource.GROUP),
            Permission(Operation.READ, Resource.TOPIC),
        ),
    ),
    Api.OFFSET_FETCH: Handler(
        offset_fetch,
        (
            Permission(Operation.DESCRIBE, Resource.GROUP),
            Permission(Operation.DESCRIBE, Resource.TOPIC),
        ),
    ),
    Api.OFFSET_DELETE: Handler(
        offset_delete,
        (
            Permission(Operation.DELETE, Resource.GROUP),
            Permission(Operation.READ, Resource.TOPIC),
        ),
    ),
}
