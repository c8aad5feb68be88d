from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.errors import CorruptBatch
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
NOT_FOUND = (-1, -1, -1)


def request_partition(timestamp: int, index: int = 0, epoch: int = -1) -> Any:
    return m.ListOffsetsRequest.ListOffsetsPartition(
        partition_index=index, timestamp=timestamp, current_leader_epoch=epoch
    )


async def responses(
    call: BrokerCalls, *parts: Any, topic: str = "orders", version: int | None = None, **fields: Any
) -> list[Any]:
    topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=list(parts))]
    response = await call(Api.LIST_OFFSETS, version, replica_id=-1, topics=topics, **fields)
    return list(response.topics[0].partitions)


async def offset_at(call: BrokerCalls, timestamp: int, **fields: Any) -> tuple[int, int, int]:
    (answer,) = await responses(call, request_partition(timestamp), **fields)
    assert answer.error_code == 0
    return answer.offset, answer.timestamp, answer.leader_epoch


async def error(call: BrokerCalls, part: Any, **fields: Any) -> int:
    (answer,) = await responses(call, part, **fields)
    assert (answer.offset, answer.timestamp, answer.leader_epoch) == NOT_FOUND
    return int(answer.error_code)


@pytest.fixture
async def filled(call: BrokerCalls) -> BrokerCalls:
    await call.create("orders", 2)
    await call.append("orders", 1000, 3000, 2000, 3000, 2500)
    return call


async def test_offsets_are_found_as_kafka_finds_them(filled: BrokerCalls) -> None:
    for timestamp, expected in [
        (LATEST, (5, -1, 0)),
        (EARLIEST, (0, -1, 0)),
        (MAX_TIMESTAMP, (1, 3000, 0)),
        (EARLIEST_LOCAL, (0, -1, 0)),
        (LATEST_TIERED, NOT_FOUND),
        (EARLIEST_PENDING, NOT_FOUND),
        (0, (0, 1000, 0)),
        (1000, (0, 1000, 0)),
        (1001, (1, 3000, 0)),
        (3000, (1, 3000, 0)),
        (3001, NOT_FOUND),
    ]:
        assert await offset_at(filled, timestamp) == expected, timestamp


async def test_an_empty_partition_has_no_record_of_any_time(call: BrokerCalls) -> None:
    await call.create("orders")
    for timestamp in (MAX_TIMESTAMP, 0, 5):
        assert await offset_at(call, timestamp) == NOT_FOUND


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_without_transactions_all_readers_see_the_same_end(
    filled: BrokerCalls, isolation_level: int
) -> None:
    assert await offset_at(filled, LATEST, isolation_level=isolation_level) == (5, -1, 0)


async def test_every_version_finds_the_earliest_the_latest_and_an_offset_by_time(filled: BrokerCalls) -> None:
    for version in range(1, 12):
        epoch = 0 if version >= 4 else -1
        assert await offset_at(filled, LATEST, version=version) == (5, -1, epoch)
        assert await offset_at(filled, EARLIEST, version=version) == (0, -1, epoch)
        assert await offset_at(filled, 1500, version=version) == (1, 3000, epoch)


async def test_newer_special_timestamps_need_newer_api_versions(filled: BrokerCalls) -> None:
    for timestamp, since in [
        (MAX_TIMESTAMP, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (EARLIEST_PENDING, 11),
    ]:
        assert (
            await error(filled, request_partition(timestamp), version=since - 1)
            == ErrorCode.UNSUPPORTED_VERSION
        )
        (answer,) = await responses(filled, request_partition(timestamp), version=since)
        assert answer.error_code == 0


async def test_an_unknown_special_timestamp_is_unsupported(filled: BrokerCalls) -> None:
    assert await error(filled, request_partition(-7)) == ErrorCode.UNSUPPORTED_VERSION


async def test_a_missing_topic_or_partition_is_unknown(filled: BrokerCalls) -> None:
    assert await error(filled, request_partition(LATEST, index=2)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await error(filled, request_partition(LATEST, index=-1)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (
        await error(filled, request_partition(LATEST), topic="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


async def test_an_old_leader_epoch_is_fenced_and_a_future_one_is_unknown(
    start: StartBroker,
) -> None:
    await (await start()).create("orders")
    call = await start()
    (answer,) = await responses(call, request_partition(LATEST, epoch=1))
    assert answer.error_code == 0
    assert await error(call, request_partition(LATEST, epoch=0)) == ErrorCode.FENCED_LEADER_EPOCH
    assert await error(call, request_partition(LATEST, epoch=2)) == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_an_offset_is_returned_with_the_epoch_that_wrote_it(start: StartBroker) -> None:
    call = await start()
    await call.create("orders")
    for timestamp in (100, 200, 300):
        await call.append("orders", timestamp)
        call = await start()
    assert [(await offset_at(call, t))[2] for t in (EARLIEST, 100, 200, 300, MAX_TIMESTAMP, LATEST)] == [
        0,
        0,
        1,
        2,
        2,
        3,
    ]


async def test_the_start_moves_with_deleted_records(filled: BrokerCalls) -> None:
    partition = filled.broker.partition("orders", 0)
    assert partition is not None
    await partition.delete_before(3)
    assert await offset_at(filled, EARLIEST) == (3, -1, 0)
    assert await offset_at(filled, 0) == (3, 3000, 0)


async def test_a_repeated_partition_is_an_invalid_request(filled: BrokerCalls) -> None:
    results = await responses(
        filled, request_partition(LATEST), request_partition(EARLIEST), request_partition(LATEST, index=1)
    )
    assert [answer.error_code for answer in results] == [ErrorCode.INVALID_REQUEST] * 2 + [0]


async def test_a_partition_without_files_returns_a_storage_error(filled: BrokerCalls) -> None:
    filled.broker.partitions._by_topic["orders"][0] = OfflinePartition("the disk failed", 0)
    for timestamp in (LATEST, EARLIEST, 1000, MAX_TIMESTAMP):
        assert await error(filled, request_partition(timestamp)) == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_time_lookup_in_a_damaged_batch_returns_corrupt_message(
    filled: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = filled.broker.partition("orders", 0)
    assert partition is not None

    async def damaged(timestamp_ms: int, executor: object, wait_s: float) -> None:
        raise CorruptBatch(partition.log.directory, 0, "its CRC does not match")

    monkeypatch.setattr(partition, "offset_for_time", damaged)
    assert await error(filled, request_partition(1000)) == ErrorCode.CORRUPT_MESSAGE
