"""The APIs of transactions, over the wire format, against a real broker on a real disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.handlers import produce
from headrace.broker.net.request import Request
from headrace.broker.transactions import completion
from headrace.records import build_batch
from headrace.wire import Api, versions
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode
from tests.unit.broker.broker_calls import BrokerCalls
from tests.unit.broker.conftest import call, start

__all__ = ["call", "start"]

Who = tuple[str, int, int]


async def init_producer(call: BrokerCalls, transactional_id: str = "x") -> Who:
    answer = await call(
        Api.INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout_ms=60_000
    )
    assert answer.error_code == 0
    return transactional_id, answer.producer_id, answer.producer_epoch


def fields(who: Who) -> dict[str, Any]:
    return {"transactional_id": who[0], "producer_id": who[1], "producer_epoch": who[2]}


async def write(call: BrokerCalls, who: Who, topic: str, sequence: int = 0, version: int = 12) -> int:
    batch = build_batch(
        [(b"k", b"v", ())],
        timestamp_ms=int(time.time() * 1000),
        producer_id=who[1],
        producer_epoch=who[2],
        base_sequence=sequence,
        transactional=True,
    )
    request = m.ProduceRequest
    data = request.PartitionProduceData(index=0, records=memoryview(bytes(batch)))
    message = request(
        transactional_id=who[0],
        acks=-1,
        timeout_ms=1000,
        topic_data=[request.TopicProduceData(name=topic, partition_data=[data])],
    )
    produced = produce.begin(call.broker, Request(Api.PRODUCE, version, 1, "tests", message, "here"))
    for wait in produced.durable_futures:
        await wait
    code: int = produced.finish().responses[0].partition_responses[0].error_code
    return code


async def add(
    call: BrokerCalls, version: int, who: Who, topic: str, indexes: list[int], **options: Any
) -> list[int]:
    topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)]
    if version < 4:
        named = {f"v3_and_below_{key}": value for key, value in fields(who).items()}
        answer = await call(Api.ADD_PARTITIONS_TO_TXN, version, v3_and_below_topics=topics, **named)
        results = answer.results_by_topic_v3_and_below
    else:
        transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
        answer = await call(
            Api.ADD_PARTITIONS_TO_TXN,
            version,
            transactions=[transaction(topics=topics, **fields(who), **options)],
        )
        assert answer.error_code == 0
        results = answer.results_by_transaction[0].topic_results
    return [
        transaction.partition_error_code for topic in results for transaction in topic.results_by_partition
    ]


@pytest.mark.parametrize("version", range(6))
async def test_partitions_are_added_all_or_not_at_all(call: BrokerCalls, version: int) -> None:
    await call.create("t", 2)
    producer = await init_producer(call)
    assert await add(call, version, producer, "t", [0, 7]) == [55, 3]
    assert await add(call, version, producer, "nowhere", [0]) == [3]
    assert await add(call, version, producer, "t", [0, 1]) == [0, 0]
    stale = (producer[0], producer[1], producer[2] - 1)
    assert await add(call, version, stale, "t", [0]) == [47 if version < 2 else 90]


@pytest.mark.parametrize("version", [4, 5])
async def test_partitions_are_verified_without_being_added(call: BrokerCalls, version: int) -> None:
    await call.create("t", 2)
    producer = await init_producer(call)
    await add(call, version, producer, "t", [0])
    assert await add(call, version, producer, "t", [0, 1], verify_only=True) == [0, 120]


@pytest.mark.parametrize("version", range(6))
async def test_an_end_returns_the_next_epoch_from_version_5_on(call: BrokerCalls, version: int) -> None:
    await call.create("t")
    producer = await init_producer(call)
    assert await write(call, producer, "t") == 0
    answer = await call(Api.END_TXN, version, committed=True, **fields(producer))
    assert answer.error_code == 0
    assert (answer.producer_id, answer.producer_epoch) == ((producer[1], 1) if version >= 5 else (-1, -1))
    stale = (producer[0], producer[1], producer[2] + 7)
    answer = await call(Api.END_TXN, version, committed=True, **fields(stale))
    assert answer.error_code == (47 if version < 2 else 90)


async def commit_offset(call: BrokerCalls, version: int, who: Who, group: str, offset: int) -> int:
    request = m.TxnOffsetCommitRequest
    partition = request.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [request.TxnOffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = await call(Api.TXN_OFFSET_COMMIT, version, group_id=group, topics=topics, **fields(who))
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def fetch_offset(call: BrokerCalls, version: int, group: str, *, stable: bool) -> tuple[int, int]:
    request = m.OffsetFetchRequest
    if version < 8:
        topics = [request.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        answer = await call(Api.OFFSET_FETCH, version, group_id=group, topics=topics, require_stable=stable)
        response = answer.topics[0].partitions[0]
    else:
        wanted = [request.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        answer = await call(
            Api.OFFSET_FETCH,
            version,
            groups=[request.OffsetFetchRequestGroup(group_id=group, topics=wanted)],
            require_stable=stable,
        )
        response = answer.groups[0].topics[0].partitions[0]
    return response.error_code, response.committed_offset


@pytest.mark.parametrize("version", range(6))
async def test_offsets_wait_for_the_end_of_their_transaction(call: BrokerCalls, version: int) -> None:
    await call.create("t")
    producer = await init_producer(call)
    if version < 5:
        refused = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
        assert await commit_offset(call, version, producer, "g", 5) == refused
        added = await call(Api.ADD_OFFSETS_TO_TXN, min(version, 4), group_id="g", **fields(producer))
        assert added.error_code == 0
    assert await commit_offset(call, version, producer, "g", 5) == 0
    for fetch_version in (7, 9):
        assert await fetch_offset(call, fetch_version, "g", stable=True) == (88, -1)
        assert await fetch_offset(call, fetch_version, "g", stable=False) == (0, -1)
    assert (await call(Api.END_TXN, 4, committed=True, **fields(producer))).error_code == 0
    for fetch_version in (7, 9):
        assert await fetch_offset(call, fetch_version, "g", stable=True) == (0, 5)
    assert await commit_offset(call, version, (producer[0], producer[1], 9), "g", 5) == 47


async def test_transactions_are_described_and_listed(call: BrokerCalls) -> None:
    await call.create("t", 2)
    app_one, app_two = await init_producer(call, "app-one"), await init_producer(call, "app-two")
    await add(call, 3, app_one, "t", [1, 0])
    answer = await call(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["app-one", "app-two", "none", ""])
    states = [(s.error_code, s.transaction_state, s.producer_epoch) for s in answer.transaction_states]
    assert states == [(0, "Ongoing", 0), (0, "Empty", 0), (105, "", 0), (42, "", 0)]
    first = answer.transaction_states[0]
    assert [(topic.topic, topic.partitions) for topic in first.topics] == [("t", [0, 1])]
    assert (first.producer_id, first.transaction_timeout_ms) == (app_one[1], 60_000)
    assert first.transaction_start_time_ms > 0

    async def list_ids(version: int = 2, **filters: Any) -> list[str]:
        response = await call(Api.LIST_TRANSACTIONS, version, **filters)
        assert response.error_code == 0
        return sorted(state.transactional_id for state in response.transaction_states)

    assert await list_ids(0) == ["app-one", "app-two"]
    assert await list_ids(state_filters=["Ongoing"]) == ["app-one"]
    assert await list_ids(producer_id_filters=[app_two[1]]) == ["app-two"]
    assert await list_ids(duration_filter=3_600_000, state_filters=["Ongoing"]) == []
    assert await list_ids(transactional_id_pattern=".*-two") == ["app-two"]
    assert await list_ids(transactional_id_pattern="-two") == []
    unknown = await call(Api.LIST_TRANSACTIONS, state_filters=["ongoing", "Dead"])
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (["ongoing"], [])
    refused = await call(Api.LIST_TRANSACTIONS, transactional_id_pattern="(")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert await list_ids(transactional_id_pattern="(" * 40 + ")" * 40) == []
    assert await list_ids(transactional_id_pattern="(?i)APP-\\pL+") == ["app-one", "app-two"]


@pytest.mark.parametrize("version", range(3, versions(Api.INIT_PRODUCER_ID)[1] + 1))
async def test_a_fenced_producer_gets_the_error_code_of_its_version(call: BrokerCalls, version: int) -> None:
    producer = await init_producer(call)
    await init_producer(call)
    answer = await call(Api.INIT_PRODUCER_ID, version, transaction_timeout_ms=60_000, **fields(producer))
    assert (answer.error_code, answer.producer_id) == (47 if version < 4 else 90, -1)


async def test_an_open_transaction_continues_after_a_stop_and_a_decided_one_stays_decided(
    start: Callable[..., Awaitable[BrokerCalls]],
) -> None:
    call = await start()
    await call.create("t")
    await call.create("u")
    first_producer, second_producer = await init_producer(call, "one"), await init_producer(call, "two")
    assert [await write(call, first_producer, "t"), await write(call, second_producer, "u")] == [0, 0]
    assert (await call(Api.END_TXN, committed=True, **fields(first_producer))).error_code == 0
    assert await commit_offset(call, 5, second_producer, "g", 5) == 0
    call = await start()
    answer = await call(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["one", "two"])
    assert [s.transaction_state for s in answer.transaction_states] == ["CompleteCommit", "Ongoing"]
    first, second = call.broker.partition("t", 0), call.broker.partition("u", 0)
    assert first is not None
    assert second is not None
    assert (first.last_stable_offset, second.last_stable_offset) == (2, 0)
    assert (await call(Api.END_TXN, committed=True, **fields(second_producer))).error_code == 0
    assert await fetch_offset(call, 9, "g", stable=True) == (0, 5)


async def test_no_batch_joins_a_decided_transaction_whose_markers_are_being_written(
    call: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested with the first protocol, in which the epoch stays the same after a transaction."""
    monkeypatch.setattr(completion, "_MARKERS_PER_STEP", 1)
    await call.create("a")
    await call.create("b")
    producer = await init_producer(call)
    await add(call, 3, producer, "a", [0])
    await add(call, 3, producer, "b", [0])
    assert [await write(call, producer, topic, version=9) for topic in ("a", "b")] == [0, 0]
    loop = asyncio.get_running_loop()
    call_soon, held_callbacks = loop.call_soon, []

    def hold_markers(callback: Any, *arguments: Any, **keywords: Any) -> Any:
        if getattr(callback, "__name__", "") == "_mark_next":
            held_callbacks.append(lambda: callback(*arguments))
            return None
        return call_soon(callback, *arguments, **keywords)

    monkeypatch.setattr(loop, "call_soon", hold_markers)
    ended = await call(Api.END_TXN, 4, committed=True, **fields(producer))
    assert (ended.error_code, len(held_callbacks)) == (0, 1)
    assert await write(call, producer, "b", sequence=1, version=9) == ErrorCode.NOT_ENOUGH_REPLICAS
    monkeypatch.setattr(loop, "call_soon", call_soon)
    held_callbacks.pop()()
    await asyncio.sleep(0)
    await add(call, 3, producer, "b", [0])
    assert await write(call, producer, "b", sequence=1, version=9) == 0
