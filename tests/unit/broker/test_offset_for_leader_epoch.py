from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.broker.offline_partition import OfflinePartition
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]


async def end_of(
    ask: Asking,
    epoch: int,
    *,
    current: int = -1,
    index: int = 0,
    topic: str = "orders",
    version: int | None = None,
) -> tuple[int, int, int]:
    """Error, epoch and end offset."""
    request = m.OffsetForLeaderEpochRequest
    part = request.OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
    topics = [request.OffsetForLeaderTopic(topic=topic, partitions=[part])]
    response = await ask(Api.OFFSET_FOR_LEADER_EPOCH, version, topics=topics)
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.fixture
async def thrice(start: Starting) -> Asking:
    """Epoch 0 wrote offsets 0 and 1, epoch 1 wrote nothing, epoch 2 wrote offset 2; now it is epoch 3."""
    ask = await start()
    await ask.create("orders", 2)
    await ask.append("orders", 1, 2)
    ask = await start()
    ask = await start()
    await ask.append("orders", 3)
    return await start()


async def test_the_end_of_an_epoch_is_where_the_next_began(thrice: Asking) -> None:
    for version in (2, 3, 4):
        assert await end_of(thrice, 0, version=version) == (0, 0, 2)
        assert await end_of(thrice, 1, version=version) == (0, 0, 2)
        assert await end_of(thrice, 2, version=version) == (0, 2, 3)
        assert await end_of(thrice, 3, version=version) == (0, 3, 3)


async def test_an_epoch_that_never_was_has_no_end(thrice: Asking) -> None:
    assert await end_of(thrice, 4) == (0, -1, -1)
    assert await end_of(thrice, -1) == (0, -1, -1)


async def test_the_clients_own_epoch_is_checked_first(thrice: Asking) -> None:
    assert await end_of(thrice, 0, current=3) == (0, 0, 2)
    assert await end_of(thrice, 0, current=2) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert await end_of(thrice, 0, current=4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


async def test_what_is_not_there_is_unknown(thrice: Asking) -> None:
    assert await end_of(thrice, 0, index=2) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert await end_of(thrice, 0, topic="nope") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


async def test_a_partition_without_files_answers_with_a_storage_error(thrice: Asking) -> None:
    thrice.broker.partitions._by_topic["orders"][0] = OfflinePartition("the disk said no", 3)
    assert await end_of(thrice, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)
