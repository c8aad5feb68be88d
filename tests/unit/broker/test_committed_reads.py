"""Fetch, ListOffsets and DescribeProducers while transactions are open, committed and aborted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.handlers import fetch
from headrace.broker.partition import Partition
from headrace.broker.request import Request
from headrace.records import build_batch, iter_headers
from headrace.wire import Api, decode_request, decode_response, encode_request, encode_response, versions
from headrace.wire import messages as m

from .desk import Asking

LATEST, EARLIEST, GREATEST_TIME = -1, -2, -3
COMMITTED, UNCOMMITTED = 1, 0


class Writer:
    """Transactions of one partition, durable when a call returns."""

    def __init__(self, ask: Asking, name: str) -> None:
        self.now_ms = ask.broker.clock.now_ms()
        found = ask.broker.partition(name, 0)
        assert found is not None
        self.partition: Partition = found

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
        accepted = self.partition.mark(
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
async def writer(ask: Asking) -> Writer:
    await ask.create("orders")
    return Writer(ask, "orders")


def fetched(ask: Asking, offset: int, isolation_level: int, *, max_bytes: int = 1 << 20) -> Any:
    """What a fetch of the partition says at once, through the real wire format."""
    version = 12
    place = m.FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    message = m.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=isolation_level,
        session_epoch=-1,
        topics=[m.FetchRequest.FetchTopic(topic="orders", partitions=[place])],
    )
    header, decoded = decode_request(encode_request(Api.FETCH, version, 7, "tests", message)[4:])
    request = Request(Api.FETCH, version, header.correlation_id, header.client_id, decoded, "127.0.0.1")
    response = fetch.begin(ask.broker, request).attempt(last=True)
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
    return [(one.producer_id, one.first_offset) for one in answer.aborted_transactions]


async def test_a_committed_read_ends_where_an_open_transaction_begins(ask: Asking, writer: Writer) -> None:
    await ask.append("orders", writer.now_ms)
    await writer.send((1, 0, 0))
    await ask.append("orders", writer.now_ms)
    answer = fetched(ask, 0, COMMITTED)
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
    assert offsets_in(answer) == [0]
    assert aborted_in(answer) == []
    every = fetched(ask, 0, UNCOMMITTED)
    assert (every.last_stable_offset, offsets_in(every), aborted_in(every)) == (1, [0, 1, 2], None)


async def test_a_committed_read_between_the_stable_and_the_last_offset_waits_and_is_no_error(
    ask: Asking, writer: Writer
) -> None:
    await writer.send((1, 0, 0))
    await writer.send((1, 0, 1))
    answer = fetched(ask, 1, COMMITTED)
    assert (answer.error_code, offsets_in(answer), aborted_in(answer)) == (0, [], [])
    assert fetched(ask, 3, COMMITTED).error_code == 1


async def test_a_committed_read_names_the_aborted_transactions_of_what_it_gives(
    ask: Asking, writer: Writer
) -> None:
    await writer.send((1, 0, 0))
    await writer.send((2, 0, 0))
    await writer.end(2, 1, committed=False)
    await writer.end(1, 1, committed=True)
    await writer.send((1, 1, 0))
    await writer.end(1, 2, committed=False)
    assert aborted_in(fetched(ask, 0, COMMITTED)) == [(2, 1), (1, 4)]
    assert aborted_in(fetched(ask, 2, COMMITTED)) == [(2, 1), (1, 4)]
    assert aborted_in(fetched(ask, 3, COMMITTED)) == [(1, 4)]
    first = fetched(ask, 0, COMMITTED, max_bytes=1)
    assert (offsets_in(first), aborted_in(first)) == ([0], [])
    assert aborted_in(fetched(ask, 0, UNCOMMITTED)) is None


async def test_the_latest_offset_of_committed_records_is_the_stable_one(ask: Asking, writer: Writer) -> None:
    async def listed(time: int, isolation_level: int) -> int:
        request = m.ListOffsetsRequest
        part = request.ListOffsetsPartition(partition_index=0, timestamp=time)
        response = await ask(
            Api.LIST_OFFSETS,
            8,
            isolation_level=isolation_level,
            topics=[request.ListOffsetsTopic(name="orders", partitions=[part])],
        )
        offset: int = response.topics[0].partitions[0].offset
        return offset

    await ask.append("orders", writer.now_ms - 1000)
    await writer.send((1, 0, 0))
    assert await listed(LATEST, UNCOMMITTED) == 2
    assert await listed(LATEST, COMMITTED) == 1
    assert await listed(EARLIEST, COMMITTED) == 0
    assert await listed(writer.now_ms, UNCOMMITTED) == 1
    assert await listed(writer.now_ms, COMMITTED) == -1
    assert await listed(GREATEST_TIME, COMMITTED) == -1
    assert await listed(writer.now_ms - 1000, COMMITTED) == 0
    await writer.end(1, 1, committed=True)
    assert await listed(LATEST, COMMITTED) == await listed(LATEST, UNCOMMITTED) == 3
    assert await listed(writer.now_ms, COMMITTED) == 1


async def test_what_is_open_and_aborted_outlasts_a_restart(
    start: Callable[..., Awaitable[Asking]],
) -> None:
    ask = await start()
    await ask.create("orders")
    writer = Writer(ask, "orders")
    await writer.send((1, 0, 0))
    await writer.end(1, 1, committed=False)
    await writer.send((1, 1, 0))
    ask = await start()
    partition = Writer(ask, "orders").partition
    assert [a[:3] for a in partition.aborted_between(0, 2)] == [(1, 0, 1)]


async def describe(ask: Asking, name: str, index: int = 0) -> Any:
    request = m.DescribeProducersRequest
    response = await ask(
        Api.DESCRIBE_PRODUCERS,
        versions(Api.DESCRIBE_PRODUCERS)[1],
        topics=[request.TopicRequest(name=name, partition_indexes=[index])],
    )
    return response.topics[0].partitions[0]


async def test_producers_are_described_with_epoch_sequence_and_open_transaction(
    ask: Asking, writer: Writer
) -> None:
    def facts(one: Any) -> tuple[int, ...]:
        return (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.coordinator_epoch,
            one.current_txn_start_offset,
        )

    await writer.send((9, 2, 5), transactional=False)
    await writer.send((1, 0, 0))
    await writer.send((1, 0, 1))
    described = await describe(ask, "orders")
    assert [facts(one) for one in described.active_producers] == [(9, 2, 5, -1, -1), (1, 0, 1, -1, 1)]
    await writer.end(1, 1, committed=True)
    (_, after) = (await describe(ask, "orders")).active_producers
    assert facts(after) == (1, 1, -1, 4, -1)
    assert after.last_timestamp == writer.now_ms


async def test_producers_of_a_partition_that_is_not_there_are_not_described(
    ask: Asking, writer: Writer
) -> None:
    assert (await describe(ask, "orders", 7)).error_code == 3
    assert (await describe(ask, "nowhere")).error_code == 3
