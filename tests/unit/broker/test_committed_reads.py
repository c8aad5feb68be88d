"""Fetch, ListOffsets and DescribeProducers while transactions are open, committed and aborted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.handlers import fetch
from headrace.broker.net.request import Request
from headrace.broker.storage.partition import Partition
from headrace.records import build_batch, iter_headers
from headrace.wire import Api, decode_request, decode_response, encode_request, encode_response, versions
from headrace.wire import messages as m

from .broker_calls import BrokerCalls

LATEST, EARLIEST, GREATEST_TIME = -1, -2, -3
COMMITTED, UNCOMMITTED = 1, 0


class Writer:
    """Writes transactions to one partition; each call returns when its batch is durable."""

    def __init__(self, call: BrokerCalls, name: str) -> None:
        self.now_ms = call.broker.clock.now_ms()
        partition = call.broker.partition(name, 0)
        assert partition is not None
        self.partition: Partition = partition

    async def send(self, producer: tuple[int, int, int], *, transactional: bool = True) -> int:
        producer_id, epoch, sequence = producer
        batch = build_batch(
            [(b"key", b"value", ())],
            timestamp_ms=self.now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        accepted = self.partition.append(batch, self.now_ms, self.now_ms)
        if accepted.durable is not None:
            await accepted.durable
        return accepted.appended.base_offset

    async def end(self, producer_id: int, epoch: int, *, committed: bool) -> None:
        accepted = self.partition.append_marker(
            producer_id,
            epoch,
            committed=committed,
            coordinator_epoch=4,
            now_ms=self.now_ms,
            trusted_ms=self.now_ms,
        )
        assert accepted is not None
        if accepted.durable is not None:
            await accepted.durable


@pytest.fixture
async def writer(call: BrokerCalls) -> Writer:
    await call.create("orders")
    return Writer(call, "orders")


def fetch_partition_from(
    call: BrokerCalls, offset: int, isolation_level: int, *, max_bytes: int = 1 << 20
) -> Any:
    """Fetch without waiting, and return the partition of the response, through the real wire format."""
    version = 12
    fetch_partition = m.FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    message = m.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=isolation_level,
        session_epoch=-1,
        topics=[m.FetchRequest.FetchTopic(topic="orders", partitions=[fetch_partition])],
    )
    header, decoded = decode_request(encode_request(Api.FETCH, version, 7, "tests", message)[4:])
    request = Request(Api.FETCH, version, header.correlation_id, header.client_id, decoded, "127.0.0.1")
    response = fetch.begin(call.broker, request).attempt(last=True)
    answer = encode_response(Api.FETCH, version, 7, response)
    _, response = decode_response(Api.FETCH, version, bytes(answer)[4:])
    (topic,) = response.responses
    (partition,) = topic.partitions
    return partition


def offsets_in(answer: Any) -> list[int]:
    return [header.base_offset for _, header in iter_headers(answer.records)]


def aborted_in(answer: Any) -> list[tuple[int, int]] | None:
    if answer.aborted_transactions is None:
        return None
    return [
        (aborted_transaction.producer_id, aborted_transaction.first_offset)
        for aborted_transaction in answer.aborted_transactions
    ]


async def test_a_committed_read_ends_where_an_open_transaction_begins(
    call: BrokerCalls, writer: Writer
) -> None:
    await call.append("orders", writer.now_ms)
    await writer.send((1, 0, 0))
    await call.append("orders", writer.now_ms)
    answer = fetch_partition_from(call, 0, COMMITTED)
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
    assert offsets_in(answer) == [0]
    assert aborted_in(answer) == []
    uncommitted = fetch_partition_from(call, 0, UNCOMMITTED)
    assert (uncommitted.last_stable_offset, offsets_in(uncommitted), aborted_in(uncommitted)) == (
        1,
        [0, 1, 2],
        None,
    )


async def test_a_committed_read_beyond_the_last_stable_offset_is_empty_and_not_an_error(
    call: BrokerCalls, writer: Writer
) -> None:
    await writer.send((1, 0, 0))
    await writer.send((1, 0, 1))
    answer = fetch_partition_from(call, 1, COMMITTED)
    assert (answer.error_code, offsets_in(answer), aborted_in(answer)) == (0, [], [])
    assert fetch_partition_from(call, 3, COMMITTED).error_code == 1


async def test_a_committed_read_lists_the_aborted_transactions_of_its_records(
    call: BrokerCalls, writer: Writer
) -> None:
    await writer.send((1, 0, 0))
    await writer.send((2, 0, 0))
    await writer.end(2, 1, committed=False)
    await writer.end(1, 1, committed=True)
    await writer.send((1, 1, 0))
    await writer.end(1, 2, committed=False)
    assert aborted_in(fetch_partition_from(call, 0, COMMITTED)) == [(2, 1), (1, 4)]
    assert aborted_in(fetch_partition_from(call, 2, COMMITTED)) == [(2, 1), (1, 4)]
    assert aborted_in(fetch_partition_from(call, 3, COMMITTED)) == [(1, 4)]
    first = fetch_partition_from(call, 0, COMMITTED, max_bytes=1)
    assert (offsets_in(first), aborted_in(first)) == ([0], [])
    assert aborted_in(fetch_partition_from(call, 0, UNCOMMITTED)) is None


async def test_the_latest_offset_of_committed_records_is_the_stable_one(
    call: BrokerCalls, writer: Writer
) -> None:
    async def offset_at(time: int, isolation_level: int) -> int:
        request = m.ListOffsetsRequest
        part = request.ListOffsetsPartition(partition_index=0, timestamp=time)
        response = await call(
            Api.LIST_OFFSETS,
            8,
            isolation_level=isolation_level,
            topics=[request.ListOffsetsTopic(name="orders", partitions=[part])],
        )
        offset: int = response.topics[0].partitions[0].offset
        return offset

    await call.append("orders", writer.now_ms - 1000)
    await writer.send((1, 0, 0))
    assert await offset_at(LATEST, UNCOMMITTED) == 2
    assert await offset_at(LATEST, COMMITTED) == 1
    assert await offset_at(EARLIEST, COMMITTED) == 0
    assert await offset_at(writer.now_ms, UNCOMMITTED) == 1
    assert await offset_at(writer.now_ms, COMMITTED) == -1
    assert await offset_at(GREATEST_TIME, COMMITTED) == -1
    assert await offset_at(writer.now_ms - 1000, COMMITTED) == 0
    await writer.end(1, 1, committed=True)
    assert await offset_at(LATEST, COMMITTED) == await offset_at(LATEST, UNCOMMITTED) == 3
    assert await offset_at(writer.now_ms, COMMITTED) == 1


async def test_open_and_aborted_transactions_survive_a_restart(
    start: Callable[..., Awaitable[BrokerCalls]],
) -> None:
    call = await start()
    await call.create("orders")
    writer = Writer(call, "orders")
    await writer.send((1, 0, 0))
    await writer.end(1, 1, committed=False)
    await writer.send((1, 1, 0))
    call = await start()
    partition = Writer(call, "orders").partition
    assert [a[:3] for a in partition.aborted_between(0, 2)] == [(1, 0, 1)]


async def describe(call: BrokerCalls, name: str, index: int = 0) -> Any:
    request = m.DescribeProducersRequest
    response = await call(
        Api.DESCRIBE_PRODUCERS,
        versions(Api.DESCRIBE_PRODUCERS)[1],
        topics=[request.TopicRequest(name=name, partition_indexes=[index])],
    )
    return response.topics[0].partitions[0]


async def test_producers_are_described_with_epoch_sequence_and_open_transaction(
    call: BrokerCalls, writer: Writer
) -> None:
    def fields_of(state: Any) -> tuple[int, ...]:
        return (
            state.producer_id,
            state.producer_epoch,
            state.last_sequence,
            state.coordinator_epoch,
            state.current_txn_start_offset,
        )

    await writer.send((9, 2, 5), transactional=False)
    await writer.send((1, 0, 0))
    await writer.send((1, 0, 1))
    description = await describe(call, "orders")
    assert [fields_of(state) for state in description.active_producers] == [
        (9, 2, 5, -1, -1),
        (1, 0, 1, -1, 1),
    ]
    await writer.end(1, 1, committed=True)
    (_, after) = (await describe(call, "orders")).active_producers
    assert fields_of(after) == (1, 1, -1, 4, -1)
    assert after.last_timestamp == writer.now_ms


async def test_the_producers_of_an_unknown_partition_are_an_error(call: BrokerCalls, writer: Writer) -> None:
    assert (await describe(call, "orders", 7)).error_code == 3
    assert (await describe(call, "nowhere")).error_code == 3
