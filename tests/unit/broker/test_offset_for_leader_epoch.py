from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]


async def end_of(
    call: BrokerCalls,
    epoch: int,
    *,
    current: int = -1,
    index: int = 0,
    topic: str = "orders",
    version: int | None = None,
) -> tuple[int, int, int]:
    """Call OffsetForLeaderEpoch; return the error, the epoch and the end offset."""
    request = m.OffsetForLeaderEpochRequest
    part = request.OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
    topics = [request.OffsetForLeaderTopic(topic=topic, partitions=[part])]
    response = await call(Api.OFFSET_FOR_LEADER_EPOCH, version, topics=topics)
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.fixture
async def thrice(start: StartBroker) -> BrokerCalls:
    """A broker after three restarts: epoch 0 wrote offsets 0 and 1, epoch 2 wrote offset 2; the current epoch is 3."""
    call = await start()
    await call.create("orders", 2)
    await call.append("orders", 1, 2)
    call = await start()
    call = await start()
    await call.append("orders", 3)
    return await start()


async def test_the_end_of_an_epoch_is_where_the_next_began(thrice: BrokerCalls) -> None:
    for version in (2, 3, 4):
        assert await end_of(thrice, 0, version=version) == (0, 0, 2)
        assert await end_of(thrice, 1, version=version) == (0, 0, 2)
        assert await end_of(thrice, 2, version=version) == (0, 2, 3)
        assert await end_of(thrice, 3, version=version) == (0, 3, 3)


async def test_an_unknown_epoch_has_no_end_offset(thrice: BrokerCalls) -> None:
    assert await end_of(thrice, 4) == (0, -1, -1)
    assert await end_of(thrice, -1) == (0, -1, -1)


async def test_the_clients_own_epoch_is_checked_first(thrice: BrokerCalls) -> None:
    assert await end_of(thrice, 0, current=3) == (0, 0, 2)
    assert await end_of(thrice, 0, current=2) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert await end_of(thrice, 0, current=4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


async def test_a_missing_topic_or_partition_is_unknown(thrice: BrokerCalls) -> None:
    assert await end_of(thrice, 0, index=2) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert await end_of(thrice, 0, topic="nope") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


async def test_a_partition_without_files_returns_a_storage_error(thrice: BrokerCalls) -> None:
    thrice.broker.partitions._by_topic["orders"][0] = OfflinePartition("the disk failed", 3)
    assert await end_of(thrice, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)
