"""Bytes that are not in the page cache count toward the size of a response before they are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.handlers import fetch
from headrace.broker.net.request import Request
from headrace.files import SystemFile
from headrace.records import build_batch
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

PARTITIONS = 20
BATCH_VALUE_BYTES = 1_000


@pytest.fixture
async def cold_partitions(call: BrokerCalls, monkeypatch: pytest.MonkeyPatch) -> BrokerCalls:
    """Twenty partitions with a batch of a kilobyte each; reads find nothing in the page cache."""
    await call.create("many", partitions=PARTITIONS)
    for index in range(PARTITIONS):
        partition = call.broker.partition("many", index)
        assert partition is not None
        batch = build_batch([(b"key", bytes(BATCH_VALUE_BYTES), ())], timestamp_ms=1_000)
        accepted = partition.append(batch, 1_000, 1_000)
        assert accepted.durable is not None
        await accepted.durable
    monkeypatch.setattr(SystemFile, "pread_nowait", lambda self, size, position: None)
    return call


async def sizes_in_response(call: BrokerCalls, max_bytes: int) -> list[int]:
    """Fetch all partitions; return the number of bytes of each partition that has records in the response."""
    request = m.FetchRequest
    message = request(
        max_bytes=max_bytes,
        min_bytes=1,
        session_epoch=-1,
        topics=[
            request.FetchTopic(
                topic="many",
                partitions=[
                    request.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
                    for index in range(PARTITIONS)
                ],
            )
        ],
    )
    pending_fetch = fetch.begin(call.broker, Request(Api.FETCH, 11, 1, "tests", message, "127.0.0.1"))
    response: Any = pending_fetch.attempt(last=False)
    while response is None:
        assert pending_fetch.is_cold
        await pending_fetch.read_cold()
        response = pending_fetch.attempt(last=False)
    partitions = [answer for topic in response.responses for answer in topic.partitions]
    assert not any(answer.error_code for answer in partitions)
    return [len(answer.records) for answer in partitions if answer.records]


async def test_cold_partitions_share_the_size_limit_of_the_response(cold_partitions: BrokerCalls) -> None:
    sizes = await sizes_in_response(cold_partitions, 5_000)
    assert 0 < sum(sizes) <= 5_000


async def test_only_one_partition_gets_its_first_batch_whole(cold_partitions: BrokerCalls) -> None:
    assert len(await sizes_in_response(cold_partitions, 1)) == 1


async def committed_fetch_with_a_change(call: BrokerCalls, change: Callable[[], Awaitable[Any]]) -> Any:
    """Fetch the committed records of a partition with one aborted record. The change happens during the cold read."""
    await call.create("t")
    partition = call.broker.partition("t", 0)
    assert partition is not None
    batch = build_batch(
        [(b"key", b"aborted", ())],
        timestamp_ms=1_000,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    for accepted in (
        partition.append(batch, 1_000, 1_000),
        partition.append_marker(7, 0, committed=False, coordinator_epoch=0, now_ms=1_000, trusted_ms=1_000),
        partition.append(build_batch([(b"key", b"later", ())], timestamp_ms=1_000), 1_000, 1_000),
    ):
        assert accepted is not None
        assert accepted.durable is not None
        await accepted.durable
    request = m.FetchRequest
    message = request(
        max_bytes=1 << 20,
        min_bytes=1,
        isolation_level=1,
        session_epoch=-1,
        topics=[
            request.FetchTopic(
                topic="t",
                partitions=[request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
            )
        ],
    )
    pending_fetch = fetch.begin(call.broker, Request(Api.FETCH, 11, 1, "tests", message, "127.0.0.1"))
    assert pending_fetch.attempt(last=False) is None
    await pending_fetch.read_cold()
    await change()
    response: Any = pending_fetch.attempt(last=False)
    while response is None:
        await pending_fetch.read_cold()
        response = pending_fetch.attempt(last=False)
    return response.responses[0].partitions[0]


async def test_an_aborted_record_that_is_deleted_during_a_cold_read_is_not_delivered(
    call: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemFile, "pread_ready", lambda self, size, position: None)

    async def delete() -> None:
        request = m.DeleteRecordsRequest
        partitions = [request.DeleteRecordsPartition(partition_index=0, offset=2)]
        await call(Api.DELETE_RECORDS, topics=[request.DeleteRecordsTopic(name="t", partitions=partitions)])

    row = await committed_fetch_with_a_change(call, delete)
    assert (row.error_code, row.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")


async def test_a_cold_read_is_repeated_after_a_compaction_has_forgotten_aborted_transactions(
    call: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemFile, "pread_ready", lambda self, size, position: None)
    reads = 0
    pread = SystemFile.pread

    def count(self: SystemFile, size: int, position: int) -> bytes:
        nonlocal reads
        reads += 1
        return pread(self, size, position)

    async def forget() -> None:
        partition = call.broker.partition("t", 0)
        assert partition is not None
        nonlocal reads
        reads = 0
        monkeypatch.setattr(SystemFile, "pread", count)
        partition.log.transactions.forget([2])

    row = await committed_fetch_with_a_change(call, forget)
    assert reads
    assert [transaction.producer_id for transaction in row.aborted_transactions] == [7]


async def test_a_cold_read_of_a_deleted_topic_is_not_delivered_as_records_of_its_successor(
    call: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemFile, "pread_ready", lambda self, size, position: None)

    async def replace() -> None:
        await call(Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="t")])
        await call.create("t")
        await call.append("t", 1_000)

    row = await committed_fetch_with_a_change(call, replace)
    assert row.high_watermark == 1
    assert b"later" not in bytes(row.records)
    assert b"value" in bytes(row.records)
