from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]


async def delete(
    call: BrokerCalls, offset: int, *, topic: str = "orders", index: int = 0, version: int | None = None
) -> tuple[int, int]:
    """Call DeleteRecords; return the error and the low watermark."""
    request = m.DeleteRecordsRequest
    part = request.DeleteRecordsPartition(partition_index=index, offset=offset)
    response = await call(
        Api.DELETE_RECORDS, version, topics=[request.DeleteRecordsTopic(name=topic, partitions=[part])]
    )
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.low_watermark


@pytest.fixture
async def filled(call: BrokerCalls) -> BrokerCalls:
    await call.create("orders")
    await call.append("orders", 1, 2, 3, 4, 5)
    return call


@pytest.mark.parametrize("version", range(3))
async def test_all_records_before_an_offset_are_deleted(filled: BrokerCalls, version: int) -> None:
    assert await delete(filled, 2, version=version) == (0, 2)
    partition = filled.broker.partition("orders", 0)
    assert partition is not None
    assert (partition.start_offset, partition.end_offset) == (2, 5)


async def test_offset_minus_1_deletes_all_records(filled: BrokerCalls) -> None:
    assert await delete(filled, -1) == (0, 5)


async def test_deleting_deleted_records_is_no_error(filled: BrokerCalls) -> None:
    assert await delete(filled, 3) == (0, 3)
    assert await delete(filled, 1) == (0, 3)


@pytest.mark.parametrize("offset", [6, -2, 2**62])
async def test_an_offset_outside_the_log_is_out_of_range(filled: BrokerCalls, offset: int) -> None:
    assert await delete(filled, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_deleted_records_stay_deleted_after_a_restart(start: StartBroker) -> None:
    call = await start()
    await call.create("orders")
    await call.append("orders", 1, 2, 3)
    assert await delete(call, 2) == (0, 2)
    partition = (await start()).broker.partition("orders", 0)
    assert partition is not None
    assert partition.start_offset == 2


async def test_a_missing_topic_or_partition_is_unknown(filled: BrokerCalls) -> None:
    assert await delete(filled, 0, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete(filled, 0, topic="nope") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize("policy", ["compact", ""])
async def test_delete_records_is_refused_unless_the_cleanup_policy_has_delete(
    call: BrokerCalls, policy: str
) -> None:
    await call.create("orders", cleanup_policy=policy)
    assert await delete(call, 0) == (ErrorCode.POLICY_VIOLATION, -1)


async def test_records_of_kafkas_internal_topics_cannot_be_deleted(call: BrokerCalls) -> None:
    await call.create("__consumer_offsets")
    assert await delete(call, 0, topic="__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


async def test_a_partition_without_files_returns_a_storage_error(filled: BrokerCalls) -> None:
    filled.broker.partitions._by_topic["orders"][0] = OfflinePartition("the disk failed", 0)
    assert await delete(filled, 1) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
