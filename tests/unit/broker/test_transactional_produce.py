"""Produce as part of a transaction: what is taken, and what each refusal says. The numbers are Kafka's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.handlers import produce
from headrace.broker.request import Request
from headrace.broker.transactions import endings
from headrace.records import build_batch
from headrace.wire import Api, decode_request, encode_request
from headrace.wire import messages as m

from .desk import Asking

ADDS, ADDED_BEFORE, OLD = 12, 11, 10
COMMITTED, ABORTED = True, False
Answer = tuple[int, int, int]
"""Error, base offset, start of the log."""


@pytest.fixture
async def topic(ask: Asking) -> str:
    await ask.create("orders", 3)
    return "orders"


async def init(ask: Asking, transactional_id: str = "shop") -> tuple[int, int]:
    response = await ask(
        Api.INIT_PRODUCER_ID,
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


def batch(
    ask: Asking, producer: tuple[int, int, int] = (-1, -1, -1), *, transactional: bool = True
) -> bytearray:
    producer_id, epoch, sequence = producer
    return build_batch(
        [(b"key", b"value", ())],
        timestamp_ms=ask.broker.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


async def responses(
    ask: Asking, batches: dict[int, bytearray], *, as_id: str | None = "shop", version: int = ADDS
) -> list[Any]:
    request = m.ProduceRequest
    data = [request.PartitionProduceData(index=i, records=bytes(one)) for i, one in batches.items()]
    message = request(
        transactional_id=as_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[request.TopicProduceData(name="orders", partition_data=data)],
    )
    header, decoded = decode_request(encode_request(Api.PRODUCE, version, 7, "tests", message)[4:])
    asked = Request(Api.PRODUCE, version, header.correlation_id, header.client_id, decoded, "127.0.0.1")
    produced = produce.begin(ask.broker, asked)
    if produced.waits:
        await asyncio.wait(produced.waits)
    (answered,) = produced.finish().responses
    return list(answered.partition_responses)


async def send(
    ask: Asking, batches: dict[int, bytearray], *, as_id: str | None = "shop", version: int = ADDS
) -> dict[int, Answer]:
    return {
        one.index: (int(one.error_code), one.base_offset, one.log_start_offset)
        for one in await responses(ask, batches, as_id=as_id, version=version)
    }


async def end(ask: Asking, producer: tuple[int, int], *, committed: bool, version: int = 5) -> Any:
    response = await ask(
        Api.END_TXN,
        version,
        transactional_id="shop",
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=committed,
    )
    assert response.error_code == 0
    return response


async def test_the_first_batch_of_a_transaction_makes_its_partition_part_of_it(
    ask: Asking, topic: str
) -> None:
    producer = await init(ask)
    assert await send(ask, {0: batch(ask, (*producer, 0)), 1: batch(ask, (*producer, 0))}) == {
        0: (0, 0, 0),
        1: (0, 0, 0),
    }
    assert await send(ask, {0: batch(ask, (*producer, 1))}) == {0: (0, 1, 0)}
    partition = ask.broker.partition("orders", 0)
    assert partition is not None
    assert partition.last_stable_offset == 0
    await end(ask, producer, committed=COMMITTED)
    assert partition.end_offset == 3
    assert not partition.open_transactions()


async def test_before_version_12_a_partition_must_have_been_added(ask: Asking, topic: str) -> None:
    producer = await init(ask)
    one = {0: batch(ask, (*producer, 0))}
    assert await send(ask, one, version=ADDED_BEFORE) == {0: (120, -1, -1)}
    assert await send(ask, one, version=OLD) == {0: (48, -1, -1)}
    request = m.AddPartitionsToTxnRequest
    await ask(
        Api.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id="shop",
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[request.AddPartitionsToTxnTopic(name="orders", partitions=[0])],
    )
    assert await send(ask, one, version=OLD) == {0: (0, 0, 0)}


async def test_a_transactional_batch_without_a_transactional_id_refuses_the_whole_request(
    ask: Asking, topic: str
) -> None:
    producer = await init(ask)
    both = {0: batch(ask, (*producer, 0)), 1: batch(ask, transactional=False)}
    assert await send(ask, both, as_id=None) == {0: (53, -1, -1), 1: (53, -1, -1)}


async def test_batches_of_two_transactional_producers_do_not_come_together(ask: Asking, topic: str) -> None:
    first, second = await init(ask), await init(ask, "other")
    both = {0: batch(ask, (*first, 0)), 1: batch(ask, (*second, 0))}
    assert await send(ask, both) == {0: (49, -1, -1), 1: (49, -1, -1)}


async def test_plain_batches_pass_beside_transactional_ones(ask: Asking, topic: str) -> None:
    producer = await init(ask)
    both = {0: batch(ask, (*producer, 0)), 1: batch(ask, transactional=False)}
    assert await send(ask, both) == {0: (0, 0, 0), 1: (0, 0, 0)}


async def test_who_does_not_hold_the_transactional_id_is_refused(ask: Asking, topic: str) -> None:
    producer_id, epoch = await init(ask)
    assert await send(ask, {0: batch(ask, (producer_id + 9, epoch, 0))}) == {0: (49, -1, -1)}
    assert await send(ask, {0: batch(ask, (producer_id, epoch + 1, 0))}) == {0: (47, -1, -1)}
    assert await send(ask, {0: batch(ask, (producer_id, epoch, 0))}, as_id="stranger") == {0: (49, -1, -1)}


async def test_what_comes_late_joins_no_later_transaction(ask: Asking, topic: str) -> None:
    producer_id, epoch = await init(ask)
    await send(ask, {0: batch(ask, (producer_id, epoch, 0))})
    ended = await end(ask, (producer_id, epoch), committed=ABORTED)
    assert (ended.producer_id, ended.producer_epoch) == (producer_id, epoch + 1)
    late = {0: batch(ask, (producer_id, epoch, 1)), 1: batch(ask, (producer_id, epoch, 0))}
    assert await send(ask, late) == {0: (47, -1, -1), 1: (47, -1, -1)}
    assert await send(ask, {0: batch(ask, (producer_id, epoch + 1, 1))}) == {0: (45, -1, 0)}
    assert await send(ask, {0: batch(ask, (producer_id, epoch + 1, 0))}) == {0: (0, 2, 0)}


async def test_a_successor_fences_the_one_before_and_aborts_what_it_left_open(
    ask: Asking, topic: str
) -> None:
    zombie = await init(ask)
    await send(ask, {0: batch(ask, (*zombie, 0))})
    successor = await init(ask)
    assert successor[0] == zombie[0]
    assert successor[1] > zombie[1]
    assert await send(ask, {0: batch(ask, (*zombie, 1))}) == {0: (47, -1, -1)}
    partition = ask.broker.partition("orders", 0)
    assert partition is not None
    assert [aborted.first_offset for aborted in partition.aborted_between(0, 10)] == [0]


async def test_a_batch_that_lost_its_predecessor_is_refused(ask: Asking, topic: str) -> None:
    producer = await init(ask)
    assert await send(ask, {0: batch(ask, (*producer, 3))}) == {0: (45, -1, 0)}


async def test_a_plain_batch_does_not_slip_into_an_open_transaction(ask: Asking, topic: str) -> None:
    producer = await init(ask)
    await send(ask, {0: batch(ask, (*producer, 0))})
    plain = {0: batch(ask, (*producer, 1), transactional=False)}
    assert await send(ask, plain) == {0: (48, -1, 0)}
    assert await send(ask, plain, as_id=None) == {0: (48, -1, 0)}


async def test_a_partition_that_is_not_there_is_no_part_of_a_transaction(ask: Asking, topic: str) -> None:
    producer = await init(ask)
    assert await send(ask, {7: batch(ask, (*producer, 0))}) == {7: (3, -1, -1)}


async def test_while_an_end_is_being_decided_nothing_is_added(ask: Asking, topic: str) -> None:
    producer = await init(ask)
    await send(ask, {0: batch(ask, (*producer, 0))})
    ending = asyncio.ensure_future(end(ask, producer, committed=COMMITTED))
    await asyncio.sleep(0)
    # Old clients do not know the first code as one to try again after.
    one = {1: batch(ask, (*producer, 0))}
    assert await send(ask, one) == {1: (51, -1, -1)}
    assert await send(ask, one, version=OLD) == {1: (19, -1, -1)}
    await ending


@pytest.mark.parametrize(("version", "code"), [(ADDS, 51), (OLD, 19)])
async def test_a_partition_that_is_yet_to_be_marked_takes_nothing_and_says_that_the_transaction_is_being_ended(
    ask: Asking, topic: str, monkeypatch: pytest.MonkeyPatch, version: int, code: int
) -> None:
    monkeypatch.setattr(endings, "_MARKED_AT_ONCE", 1)
    producer = await init(ask)
    await send(ask, {index: batch(ask, (*producer, 0)) for index in range(3)})
    ending = asyncio.ensure_future(end(ask, producer, committed=COMMITTED, version=4))
    while not ask.broker.transactions.is_marking(producer[0]):
        await asyncio.sleep(0)
    unmarked = [one for one in range(3) if _is_open(ask, one)]
    assert 0 < len(unmarked) < 3
    (refused,) = await responses(ask, {unmarked[0]: batch(ask, (*producer, 1))}, version=version)
    assert (refused.error_code, refused.error_message) == (
        code,
        f"the last transaction of producer {producer[0]} is still being ended; try again",
    )
    await ending
    await _until_marked(ask, producer[0])
    assert await send(ask, {0: batch(ask, (*producer, 1))}) == {0: (0, 2, 0)}


def _is_open(ask: Asking, index: int) -> bool:
    partition = ask.broker.partition("orders", index)
    assert partition is not None
    return bool(partition.open_transactions())


async def _until_marked(ask: Asking, producer_id: int) -> None:
    while ask.broker.transactions.is_marking(producer_id):
        await asyncio.sleep(0)


async def test_before_the_coordinator_runs_a_producer_is_told_to_try_again(
    ask: Asking, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await init(ask)
    monkeypatch.setattr(ask.broker.transactions, "_runs", False)
    (refused,) = await responses(ask, {0: batch(ask, (*producer, 0))})
    assert (refused.error_code, refused.error_message) == (
        19,
        "the transaction coordinator is not available; try again",
    )
