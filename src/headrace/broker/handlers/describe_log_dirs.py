"""DescribeLogDirs: the one data directory, what its partitions take up, and what room is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.broker.named_once import partitions_once
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_UNKNOWN = -1


async def handle(broker: Broker, request: Request) -> Any:
    wanted = request.message.topics
    named: Mapping[str, Iterable[int]]
    if wanted is None:
        named = {topic.name: range(topic.partitions) for topic in broker.catalog.topics()}
    else:
        named = partitions_once((topic.topic, topic.partitions) for topic in wanted)
    topics = []
    for name, indexes in named.items():
        partitions = [found for index in indexes if (found := _partition(broker, name, index)) is not None]
        if partitions:
            topics.append(m.DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions))
    total, usable = _room(broker.settings.data_dir)
    result = m.DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir=str(broker.settings.data_dir.absolute()),
        topics=topics,
        total_bytes=total,
        usable_bytes=usable,
    )
    return m.DescribeLogDirsResponse(results=[result])


def _partition(broker: Broker, name: str, index: int) -> Any | None:
    partition = broker.partition(name, index)
    if partition is None:
        return None
    return m.DescribeLogDirsResponse.DescribeLogDirsPartition(
        partition_index=index, partition_size=partition.size_bytes
    )


def _room(directory: Path) -> tuple[int, int]:
    """Size and free space of the file system, or that nobody knows: the rest of the answer is right either
    way.
    """
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return _UNKNOWN, _UNKNOWN
    return usage.total, usage.free
