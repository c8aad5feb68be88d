"""OffsetFetch: how far groups have come.

Up to version 7 a request is about one group, from version 8 about several; a list of topics that is null asks
for all that the group has. An offset that was never committed is −1, also for a group or a topic that is not
known. A topic that is asked for by an id that is not known gets an error, and so does, for a client that asks for
stable offsets only, one that an open transaction may still change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.groups import GroupCoordinator, OffsetRow
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_NO_OFFSET = -1

#: Partition, the offset if there is one, and whether an open transaction may still change it.
_Rows = list[tuple[int, OffsetRow | None, bool]]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    groups = broker.groups
    if request.version >= 8:
        group_of = m.OffsetFetchResponse.OffsetFetchResponseGroup
        return m.OffsetFetchResponse(
            groups=[
                group_of(
                    group_id=group.group_id,
                    topics=_of_group(
                        groups, group, by_id=request.version >= 10, stable=message.require_stable
                    ),
                )
                for group in message.groups
            ]
        )
    topic_of = m.OffsetFetchResponse.OffsetFetchResponseTopic
    partition_of = m.OffsetFetchResponse.OffsetFetchResponsePartition
    if message.topics is None:
        wanted = _all(groups, message.group_id, message.require_stable)
    else:
        wanted = [
            (
                topic.name,
                _some(groups, message.group_id, topic.name, topic.partition_indexes, message.require_stable),
            )
            for topic in message.topics
        ]
    return m.OffsetFetchResponse(
        topics=[topic_of(name=name, partitions=_partitions(partition_of, rows)) for name, rows in wanted]
    )


def _of_group(groups: GroupCoordinator, group: Any, *, by_id: bool, stable: bool) -> list[Any]:
    topic_of = m.OffsetFetchResponse.OffsetFetchResponseTopics
    partition_of = m.OffsetFetchResponse.OffsetFetchResponsePartitions
    answer = []
    if group.topics is None:
        for topic_name, rows in _all(groups, group.group_id, stable):
            topic_id = groups.topics.id_of(topic_name)
            if by_id and topic_id is None:
                # The topic was deleted a moment ago, and this version has no other way to name it.
                continue
            partitions = _partitions(partition_of, rows)
            answer.append(topic_of(name=topic_name, topic_id=topic_id or bytes(16), partitions=partitions))
        return answer
    for topic in group.topics:
        name = groups.topics.name_of(topic.topic_id) if by_id else topic.name
        if name is None:
            unknown: _Rows = [(index, None, False) for index in topic.partition_indexes]
            partitions = _partitions(partition_of, unknown, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            found = _some(groups, group.group_id, name, topic.partition_indexes, stable)
            partitions = _partitions(partition_of, found)
        answer.append(topic_of(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    return answer


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
