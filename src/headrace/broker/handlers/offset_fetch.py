"""OffsetFetch: how far groups have come.

Up to version 7 a request is about one group, from version 8 about several; a list of topics that is null asks
for all that the group has. An offset that was never committed is −1, also for a group or a topic that is not
known. A topic that is asked for by an id that is not known gets an error, and so does, for a client that asks for
stable offsets only, one that an open transaction may still change. Each group and each partition is answered once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.broker.groups import GroupCoordinator, OffsetRow
from headrace.broker.named_once import partitions_once
from headrace.broker.response_room import ResponseRoom
from headrace.broker.sizes import text_bytes
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_NO_OFFSET = -1
_MANY_SINCE = 8
_IDS_SINCE = 10
_PARTITION_BYTES = 192

#: Partition, the offset if there is one, and whether an open transaction may still change it.
_Rows = list[tuple[int, OffsetRow | None, bool]]
#: A topic by its name or by its id, and its rows; without a name the id is not known.
_Found = tuple[str | bytes, str | None, _Rows]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    groups = broker.groups
    if request.version >= _MANY_SINCE:
        return await _many(broker, request, by_id=request.version >= _IDS_SINCE)
    topic_of = m.OffsetFetchResponse.OffsetFetchResponseTopic
    partition_of = m.OffsetFetchResponse.OffsetFetchResponsePartition
    if message.topics is None:
        wanted = _all(groups, message.group_id, message.require_stable)
    else:
        named = partitions_once((topic.name, topic.partition_indexes) for topic in message.topics)
        wanted = [
            (name, _some(groups, message.group_id, name, indexes, message.require_stable))
            for name, indexes in named.items()
        ]
    return m.OffsetFetchResponse(
        topics=[topic_of(name=name, partitions=_partitions(partition_of, rows)) for name, rows in wanted]
    )


async def _many(broker: Broker, request: Request, *, by_id: bool) -> Any:
    message = request.message
    room = ResponseRoom(broker, request)
    group_of = m.OffsetFetchResponse.OffsetFetchResponseGroup
    response = m.OffsetFetchResponse()
    for group_id, topics in _groups_once(message.groups, by_id=by_id).items():
        if not room.is_full:
            found = _of_group(broker.groups, group_id, topics, by_id=by_id, stable=message.require_stable)
            if room.take(_size(found)):
                response.groups.append(
                    group_of(group_id=group_id, topics=[_topic(*topic) for topic in found])
                )
                await room.give_turn()
                continue
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        response.groups.append(group_of(group_id=group_id, error_code=error))
    return response


def _groups_once(groups: Iterable[Any], *, by_id: bool) -> dict[str, dict[str | bytes, list[int]] | None]:
    """The partitions of each group by topic name or id; None stands for all that the group has."""
    items: dict[str, list[tuple[str | bytes, list[int]]] | None] = {}
    for group in groups:
        named = items.setdefault(group.group_id, [])
        if group.topics is None or named is None:
            items[group.group_id] = None
        else:
            named += [
                (topic.topic_id if by_id else topic.name, topic.partition_indexes) for topic in group.topics
            ]
    return {group_id: None if named is None else partitions_once(named) for group_id, named in items.items()}


def _of_group(
    groups: GroupCoordinator,
    group_id: str,
    topics: dict[str | bytes, list[int]] | None,
    *,
    by_id: bool,
    stable: bool,
) -> list[_Found]:
    found: list[_Found] = []
    if topics is None:
        for name, rows in _all(groups, group_id, stable):
            topic = groups.topics.id_of(name) if by_id else name
            # Without an id it was deleted a moment ago, and this version has no other way to name it.
            if topic is not None:
                found.append((topic, name, rows))
        return found
    for named, indexes in topics.items():
        known = groups.topics.name_of(named) if isinstance(named, bytes) else named
        if known is None:
            found.append((named, None, [(index, None, False) for index in indexes]))
        else:
            found.append((named, known, _some(groups, group_id, known, indexes, stable)))
    return found


def _size(found: list[_Found]) -> int:
    size = 0
    for _, name, rows in found:
        size += text_bytes(name) + _PARTITION_BYTES * (1 + len(rows))
        size += sum(text_bytes(row.metadata) for _, row, _ in rows if row is not None)
    return size


def _topic(topic: str | bytes, name: str | None, rows: _Rows) -> Any:
    partition_of = m.OffsetFetchResponse.OffsetFetchResponsePartitions
    error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
    partitions = _partitions(partition_of, rows, error)
    topic_of = m.OffsetFetchResponse.OffsetFetchResponseTopics
    if isinstance(topic, bytes):
        return topic_of(topic_id=topic, partitions=partitions)
    return topic_of(name=topic, partitions=partitions)


def _all(groups: GroupCoordinator, group_id: str, stable: bool) -> list[tuple[str, _Rows]]:
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


def _some(groups: GroupCoordinator, group_id: str, topic: str, indexes: list[int], stable: bool) -> _Rows:
    return [
        (
            index,
            groups.fetch(group_id, topic, index),
            stable and groups.is_unstable(group_id, topic, index),
        )
        for index in indexes
    ]


def _partitions(partition_of: Any, rows: _Rows, error: ErrorCode = ErrorCode.NONE) -> list[Any]:
    answer = []
    for index, row, is_unstable in rows:
        if is_unstable:
            answer.append(
                partition_of(
                    partition_index=index,
                    committed_offset=_NO_OFFSET,
                    committed_leader_epoch=-1,
                    metadata="",
                    error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
                )
            )
            continue
        answer.append(
            partition_of(
                partition_index=index,
                committed_offset=_NO_OFFSET if row is None else row.offset,
                committed_leader_epoch=-1 if row is None else row.leader_epoch,
                metadata="" if row is None else row.metadata,
                error_code=error,
            )
        )
    return answer
