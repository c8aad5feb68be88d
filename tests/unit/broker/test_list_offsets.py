from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.offline_partition import OfflinePartition
from headrace.errors import CorruptBatch
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
NOWHERE = (-1, -1, -1)


def wanted(timestamp: int, index: int = 0, epoch: int = -1) -> Any:
    return m.ListOffsetsRequest.ListOffsetsPartition(
        partition_index=index, timestamp=timestamp, current_leader_epoch=epoch
    )


async def answers(
    ask: Asking, *parts: Any, topic: str = "orders", version: int | None = None, **fields: Any
) -> list[Any]:
    topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=list(parts))]
    response = await ask(Api.LIST_OFFSETS, version, replica_id=-1, topics=topics, **fields)
    return list(response.topics[0].partitions)


async def place(ask: Asking, timestamp: int, **fields: Any) -> tuple[int, int, int]:
    (answer,) = await answers(ask, wanted(timestamp), **fields)
    assert answer.error_code == 0
    return answer.offset, answer.timestamp, answer.leader_epoch


async def error(ask: Asking, part: Any, **fields: Any) -> int:
    (answer,) = await answers(ask, part, **fields)
    assert (answer.offset, answer.timestamp, answer.leader_epoch) == NOWHERE
    return int(answer.error_code)


@pytest.fixture
async def filled(ask: Asking) -> Asking:
    await ask.create("orders", 2)
    await ask.append("orders", 1000, 3000, 2000, 3000, 2500)
    return ask


async def test_offsets_are_found_as_kafka_finds_them(filled: Asking) -> None:
    for timestamp, found in [
        (LATEST, (5, -1, 0)),
        (EARLIEST, (0, -1, 0)),
        (MAX_TIMESTAMP, (1, 3000, 0)),
        (EARLIEST_LOCAL, (0, -1, 0)),
        (LATEST_TIERED, NOWHERE),
        (EARLIEST_PENDING, NOWHERE),
        (0, (0, 1000, 0)),
        (1000, (0, 1000, 0)),
        (1001, (1, 3000, 0)),
        (3000, (1, 3000, 0)),
        (3001, NOWHERE),
    ]:
        assert await place(filled, timestamp) == found, timestamp


async def test_an_empty_partition_has_no_record_of_any_time(ask: Asking) -> None:
    await ask.create("orders")
    for timestamp in (MAX_TIMESTAMP, 0, 5):
        assert await place(ask, timestamp) == NOWHERE


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_without_transactions_all_readers_see_the_same_end(
    filled: Asking, isolation_level: int
) -> None:
    assert await place(filled, LATEST, isolation_level=isolation_level) == (5, -1, 0)


async def test_every_version_knows_the_ends_and_times(filled: Asking) -> None:
    for version in range(1, 12):
        epoch = 0 if version >= 4 else -1
        assert await place(filled, LATEST, version=version) == (5, -1, epoch)
        assert await place(filled, EARLIEST, version=version) == (0, -1, epoch)
        assert await place(filled, 1500, version=version) == (1, 3000, epoch)


async def test_newer_questions_need_newer_versions(filled: Asking) -> None:
    for timestamp, since in [
        (MAX_TIMESTAMP, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (EARLIEST_PENDING, 11),
    ]:
        assert await error(filled, wanted(timestamp), version=since - 1) == ErrorCode.UNSUPPORTED_VERSION
        (answer,) = await answers(filled, wanted(timestamp), version=since)
        assert answer.error_code == 0


async def test_a_question_that_nobody_knows_is_unsupported(filled: Asking) -> None:
    assert await error(filled, wanted(-7)) == ErrorCode.UNSUPPORTED_VERSION


async def test_what_is_not_there_is_unknown(filled: Asking) -> None:
    assert await error(filled, wanted(LATEST, index=2)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await error(filled, wanted(LATEST, index=-1)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await error(filled, wanted(LATEST), topic="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_client_with_an_old_epoch_is_fenced_and_one_ahead_is_told_to_wait(start: Starting) -> None:
    await (await start()).create("orders")
    ask = await start()
    (answer,) = await answers(ask, wanted(LATEST, epoch=1))
    assert answer.error_code == 0
    assert await error(ask, wanted(LATEST, epoch=0)) == ErrorCode.FENCED_LEADER_EPOCH
    assert await error(ask, wanted(LATEST, epoch=2)) == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_an_offset_comes_with_the_epoch_that_wrote_it(start: Starting) -> None:
    ask = await start()
    await ask.create("orders")
    for timestamp in (100, 200, 300):
        await ask.append("orders", timestamp)
        ask = await start()
    assert [(await place(ask, t))[2] for t in (EARLIEST, 100, 200, 300, MAX_TIMESTAMP, LATEST)] == [
        0,
        0,
        1,
        2,
        2,
        3,
    ]


async def test_the_start_moves_with_deleted_records(filled: Asking) -> None:
    partition = filled.broker.partition("orders", 0)
    assert partition is not None
    await partition.delete_before(3)
    assert await place(filled, EARLIEST) == (3, -1, 0)
    assert await place(filled, 0) == (3, 3000, 0)


async def test_a_partition_asked_for_twice_is_an_invalid_request(filled: Asking) -> None:
    twice = await answers(filled, wanted(LATEST), wanted(EARLIEST), wanted(LATEST, index=1))
    assert [answer.error_code for answer in twice] == [ErrorCode.INVALID_REQUEST] * 2 + [0]


async def test_a_partition_without_files_answers_with_a_storage_error(filled: Asking) -> None:
    filled.broker.partitions._by_topic["orders"][0] = OfflinePartition("the disk said no", 0)
    for timestamp in (LATEST, EARLIEST, 1000, MAX_TIMESTAMP):
        assert await error(filled, wanted(timestamp)) == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_time_that_lies_in_a_damaged_batch_is_reported_as_damage(
    filled: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = filled.broker.partition("orders", 0)
    assert partition is not None

    async def damaged(timestamp_ms: int, executor: object, wait_s: float) -> None:
        raise CorruptBatch(partition.log.directory, 0, "its CRC does not match")

    monkeypatch.setattr(partition, "offset_for_time", damaged)
    assert await error(filled, wanted(1000)) == ErrorCode.CORRUPT_MESSAGE
