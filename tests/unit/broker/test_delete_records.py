from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.broker.offline_partition import OfflinePartition
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]


async def delete(
    ask: Asking, offset: int, *, topic: str = "orders", index: int = 0, version: int | None = None
) -> tuple[int, int]:
    """Error and low watermark."""
    request = m.DeleteRecordsRequest
    part = request.DeleteRecordsPartition(partition_index=index, offset=offset)
    response = await ask(
        Api.DELETE_RECORDS, version, topics=[request.DeleteRecordsTopic(name=topic, partitions=[part])]
    )
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.low_watermark


@pytest.fixture
async def filled(ask: Asking) -> Asking:
    await ask.create("orders")
    await ask.append("orders", 1, 2, 3, 4, 5)
    return ask


@pytest.mark.parametrize("version", range(3))
async def test_everything_before_an_offset_goes(filled: Asking, version: int) -> None:
    assert await delete(filled, 2, version=version) == (0, 2)
    partition = filled.broker.partition("orders", 0)
    assert partition is not None
    assert (partition.start_offset, partition.end_offset) == (2, 5)


async def test_minus_one_means_everything(filled: Asking) -> None:
    assert await delete(filled, -1) == (0, 5)


async def test_what_is_gone_already_is_no_error(filled: Asking) -> None:
    assert await delete(filled, 3) == (0, 3)
    assert await delete(filled, 1) == (0, 3)


@pytest.mark.parametrize("offset", [6, -2, 2**62])
async def test_an_offset_that_is_not_there_is_out_of_range(filled: Asking, offset: int) -> None:
    assert await delete(filled, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_deleted_records_stay_deleted_after_a_restart(start: Starting) -> None:
    ask = await start()
    await ask.create("orders")
    await ask.append("orders", 1, 2, 3)
    assert await delete(ask, 2) == (0, 2)
    partition = (await start()).broker.partition("orders", 0)
    assert partition is not None
    assert partition.start_offset == 2


async def test_what_is_not_there_is_unknown(filled: Asking) -> None:
    assert await delete(filled, 0, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete(filled, 0, topic="nope") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize("policy", ["compact", ""])
async def test_a_topic_that_does_not_delete_keeps_its_records(ask: Asking, policy: str) -> None:
    await ask.create("orders", cleanup_policy=policy)
    assert await delete(ask, 0) == (ErrorCode.POLICY_VIOLATION, -1)


async def test_records_of_kafkas_own_topics_are_not_for_users_to_delete(ask: Asking) -> None:
    await ask.create("__consumer_offsets")
    assert await delete(ask, 0, topic="__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


async def test_a_partition_without_files_answers_with_a_storage_error(filled: Asking) -> None:
    filled.broker.partitions._by_topic["orders"][0] = OfflinePartition("the disk said no", 0)
    assert await delete(filled, 1) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
