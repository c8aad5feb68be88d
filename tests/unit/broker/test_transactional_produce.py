"""Produce as part of a transaction: accepted batches, and the error of each refused one. The codes are Kafka's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.handlers import produce
from headrace.broker.net.request import Request
from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.broker.transactions import completion
from headrace.records import build_batch
from headrace.wire import Api, decode_request, encode_request
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

ADDING_VERSION, NON_ADDING_VERSION, OLD_VERSION = 12, 11, 10
COMMITTED, ABORTED = True, False
Result = tuple[int, int, int]
"""Error, base offset, start of the log."""


@pytest.fixture
async def topic(call: BrokerCalls) -> str:
    await call.create("orders", 3)
    return "orders"


async def init(call: BrokerCalls, transactional_id: str = "shop") -> tuple[int, int]:
    response = await call(
        Api.INIT_PRODUCER_ID,
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


def batch(
    call: BrokerCalls, producer: tuple[int, int, int] = (-1, -1, -1), *, transactional: bool = True
) -> bytearray:
    producer_id, epoch, sequence = producer
    return build_batch(
        [(b"key", b"value", ())],
        timestamp_ms=call.broker.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


async def responses(
    call: BrokerCalls,
    batches: dict[int, bytearray],
    *,
    as_id: str | None = "shop",
    version: int = ADDING_VERSION,
) -> list[Any]:
    request = m.ProduceRequest
    data = [request.PartitionProduceData(index=i, records=bytes(content)) for i, content in batches.items()]
    message = request(
        transactional_id=as_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[request.TopicProduceData(name="orders", partition_data=data)],
    )
    header, decoded = decode_request(encode_request(Api.PRODUCE, version, 7, "tests", message)[4:])
    decoded_request = Request(
        Api.PRODUCE, version, header.correlation_id, header.client_id, decoded, "127.0.0.1"
    )
    produced = produce.begin(call.broker, decoded_request)
    if produced.durable_futures:
        await asyncio.wait(produced.durable_futures)
    (topic_response,) = produced.finish().responses
    return list(topic_response.partition_responses)


async def send(
    call: BrokerCalls,
    batches: dict[int, bytearray],
    *,
    as_id: str | None = "shop",
    version: int = ADDING_VERSION,
) -> dict[int, Result]:
    return {
        response.index: (int(response.error_code), response.base_offset, response.log_start_offset)
        for response in await responses(call, batches, as_id=as_id, version=version)
    }


async def end(call: BrokerCalls, producer: tuple[int, int], *, committed: bool, version: int = 5) -> Any:
    response = await call(
        Api.END_TXN,
        version,
        transactional_id="shop",
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=committed,
    )
    assert response.error_code == 0
    return response


async def test_the_first_batch_adds_its_partition_to_the_transaction(call: BrokerCalls, topic: str) -> None:
    producer = await init(call)
    assert await send(call, {0: batch(call, (*producer, 0)), 1: batch(call, (*producer, 0))}) == {
        0: (0, 0, 0),
        1: (0, 0, 0),
    }
    assert await send(call, {0: batch(call, (*producer, 1))}) == {0: (0, 1, 0)}
    partition = call.broker.partition("orders", 0)
    assert partition is not None
    assert partition.last_stable_offset == 0
    await end(call, producer, committed=COMMITTED)
    assert partition.end_offset == 3
    assert not partition.open_transactions()


async def test_before_version_12_a_partition_must_have_been_added(call: BrokerCalls, topic: str) -> None:
    producer = await init(call)
    batches = {0: batch(call, (*producer, 0))}
    assert await send(call, batches, version=NON_ADDING_VERSION) == {0: (120, -1, -1)}
    assert await send(call, batches, version=OLD_VERSION) == {0: (48, -1, -1)}
    request = m.AddPartitionsToTxnRequest
    await call(
        Api.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id="shop",
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[request.AddPartitionsToTxnTopic(name="orders", partitions=[0])],
    )
    assert await send(call, batches, version=OLD_VERSION) == {0: (0, 0, 0)}


async def test_a_request_with_a_transactional_batch_needs_a_transactional_id(
    call: BrokerCalls, topic: str
) -> None:
    producer = await init(call)
    both = {0: batch(call, (*producer, 0)), 1: batch(call, transactional=False)}
    assert await send(call, both, as_id=None) == {0: (53, -1, -1), 1: (53, -1, -1)}


async def test_batches_of_two_transactional_producers_are_refused_in_one_request(
    call: BrokerCalls, topic: str
) -> None:
    first, second = await init(call), await init(call, "other")
    both = {0: batch(call, (*first, 0)), 1: batch(call, (*second, 0))}
    assert await send(call, both) == {0: (49, -1, -1), 1: (49, -1, -1)}


async def test_a_request_may_mix_transactional_and_other_batches(call: BrokerCalls, topic: str) -> None:
    producer = await init(call)
    both = {0: batch(call, (*producer, 0)), 1: batch(call, transactional=False)}
    assert await send(call, both) == {0: (0, 0, 0), 1: (0, 0, 0)}


async def test_a_producer_that_does_not_own_the_transactional_id_is_refused(
    call: BrokerCalls, topic: str
) -> None:
    producer_id, epoch = await init(call)
    assert await send(call, {0: batch(call, (producer_id + 9, epoch, 0))}) == {0: (49, -1, -1)}
    assert await send(call, {0: batch(call, (producer_id, epoch + 1, 0))}) == {0: (47, -1, -1)}
    assert await send(call, {0: batch(call, (producer_id, epoch, 0))}, as_id="stranger") == {0: (49, -1, -1)}


async def test_a_late_batch_joins_no_later_transaction(call: BrokerCalls, topic: str) -> None:
    producer_id, epoch = await init(call)
    await send(call, {0: batch(call, (producer_id, epoch, 0))})
    ended = await end(call, (producer_id, epoch), committed=ABORTED)
    assert (ended.producer_id, ended.producer_epoch) == (producer_id, epoch + 1)
    late = {0: batch(call, (producer_id, epoch, 1)), 1: batch(call, (producer_id, epoch, 0))}
    assert await send(call, late) == {0: (47, -1, -1), 1: (47, -1, -1)}
    assert await send(call, {0: batch(call, (producer_id, epoch + 1, 1))}) == {0: (45, -1, 0)}
    assert await send(call, {0: batch(call, (producer_id, epoch + 1, 0))}) == {0: (0, 2, 0)}


async def test_a_successor_fences_its_predecessor_and_aborts_its_transaction(
    call: BrokerCalls, topic: str
) -> None:
    zombie = await init(call)
    await send(call, {0: batch(call, (*zombie, 0))})
    successor = await init(call)
    assert successor[0] == zombie[0]
    assert successor[1] > zombie[1]
    assert await send(call, {0: batch(call, (*zombie, 1))}) == {0: (47, -1, -1)}
    partition = call.broker.partition("orders", 0)
    assert partition is not None
    assert [aborted.first_offset for aborted in partition.aborted_between(0, 10)] == [0]


async def test_a_batch_after_a_gap_in_the_sequence_is_refused(call: BrokerCalls, topic: str) -> None:
    producer = await init(call)
    assert await send(call, {0: batch(call, (*producer, 3))}) == {0: (45, -1, 0)}


async def test_a_non_transactional_batch_of_a_producer_with_an_open_transaction_is_refused(
    call: BrokerCalls, topic: str
) -> None:
    producer = await init(call)
    await send(call, {0: batch(call, (*producer, 0))})
    plain = {0: batch(call, (*producer, 1), transactional=False)}
    assert await send(call, plain) == {0: (48, -1, 0)}
    assert await send(call, plain, as_id=None) == {0: (48, -1, 0)}


async def test_a_missing_partition_cannot_join_a_transaction(call: BrokerCalls, topic: str) -> None:
    producer = await init(call)
    assert await send(call, {7: batch(call, (*producer, 0))}) == {7: (3, -1, -1)}


async def test_no_partition_is_added_while_the_end_is_decided(call: BrokerCalls, topic: str) -> None:
    producer = await init(call)
    await send(call, {0: batch(call, (*producer, 0))})
    ending = asyncio.ensure_future(end(call, producer, committed=COMMITTED))
    await asyncio.sleep(0)
    # Old clients do not retry after the first code.
    batches = {1: batch(call, (*producer, 0))}
    assert await send(call, batches) == {1: (51, -1, -1)}
    assert await send(call, batches, version=OLD_VERSION) == {1: (19, -1, -1)}
    await ending


@pytest.mark.parametrize(("version", "code"), [(ADDING_VERSION, 51), (OLD_VERSION, 19)])
async def test_a_partition_without_its_marker_refuses_batches_while_its_transaction_completes(
    call: BrokerCalls, topic: str, monkeypatch: pytest.MonkeyPatch, version: int, code: int
) -> None:
    monkeypatch.setattr(completion, "_MARKERS_PER_STEP", 1)
    producer = await init(call)
    await send(call, {index: batch(call, (*producer, 0)) for index in range(3)})
    ending = asyncio.ensure_future(end(call, producer, committed=COMMITTED, version=4))
    while not call.broker.transactions.is_marking(producer[0]):
        await asyncio.sleep(0)
    unmarked = [number for number in range(3) if _is_open(call, number)]
    assert 0 < len(unmarked) < 3
    (refused,) = await responses(call, {unmarked[0]: batch(call, (*producer, 1))}, version=version)
    assert (refused.error_code, refused.error_message) == (
        code,
        f"the previous transaction of producer {producer[0]} is still completing: retry",
    )
    await ending
    await _until_marked(call, producer[0])
    assert await send(call, {0: batch(call, (*producer, 1))}) == {0: (0, 2, 0)}


def _is_open(call: BrokerCalls, index: int) -> bool:
    partition = call.broker.partition("orders", index)
    assert partition is not None
    return bool(partition.open_transactions())


async def _until_marked(call: BrokerCalls, producer_id: int) -> None:
    while call.broker.transactions.is_marking(producer_id):
        await asyncio.sleep(0)


async def test_before_the_coordinator_runs_a_producer_gets_a_retriable_error(
    call: BrokerCalls, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await init(call)
    monkeypatch.setattr(call.broker.transactions, "_is_running", False)
    (refused,) = await responses(call, {0: batch(call, (*producer, 0))})
    assert (refused.error_code, refused.error_message) == (
        19,
        "the transaction coordinator is not available: retry",
    )


# Without a transaction


async def test_too_few_replicas_are_an_error_but_an_offline_partition_reports_its_disk(
    call: BrokerCalls,
) -> None:
    await call.create("orders", 2, min_insync_replicas="2")
    call.broker.partitions._by_topic["orders"][1] = OfflinePartition("the disk is gone", 0)
    batches = {index: batch(call, transactional=False) for index in range(2)}
    online, offline = await responses(call, batches, as_id=None)
    assert online.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    # As in Kafka, which finds the partition before it counts replicas.
    assert (offline.error_code, offline.error_message) == (ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
