"""The APIs of transactions, over the wire format, against a real broker on a real disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.handlers import produce
from headrace.broker.request import Request
from headrace.broker.transactions import endings
from headrace.records import build_batch
from headrace.wire import Api, versions
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode
from tests.unit.broker.conftest import ask, start
from tests.unit.broker.desk import Asking

__all__ = ["ask", "start"]

Who = tuple[str, int, int]


async def held(ask: Asking, transactional_id: str = "x") -> Who:
    answer = await ask(Api.INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout_ms=60_000)
    assert answer.error_code == 0
    return transactional_id, answer.producer_id, answer.producer_epoch


def fields(who: Who) -> dict[str, Any]:
    return {"transactional_id": who[0], "producer_id": who[1], "producer_epoch": who[2]}


async def write(ask: Asking, who: Who, topic: str, sequence: int = 0, version: int = 12) -> int:
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
    produced = produce.begin(ask.broker, Request(Api.PRODUCE, version, 1, "tests", message, "here"))
    for wait in produced.waits:
        await wait
    code: int = produced.finish().responses[0].partition_responses[0].error_code
    return code


async def add(ask: Asking, version: int, who: Who, topic: str, indexes: list[int], **more: Any) -> list[int]:
    topics = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)]
    if version < 4:
        named = {f"v3_and_below_{key}": value for key, value in fields(who).items()}
        answer = await ask(Api.ADD_PARTITIONS_TO_TXN, version, v3_and_below_topics=topics, **named)
        results = answer.results_by_topic_v3_and_below
    else:
        one = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
        answer = await ask(
            Api.ADD_PARTITIONS_TO_TXN, version, transactions=[one(topics=topics, **fields(who), **more)]
        )
        assert answer.error_code == 0
        results = answer.results_by_transaction[0].topic_results
    return [one.partition_error_code for topic in results for one in topic.results_by_partition]


@pytest.mark.parametrize("version", range(6))
async def test_partitions_are_added_all_or_not_at_all(ask: Asking, version: int) -> None:
    await ask.create("t", 2)
    who = await held(ask)
    assert await add(ask, version, who, "t", [0, 7]) == [55, 3]
    assert await add(ask, version, who, "nowhere", [0]) == [3]
    assert await add(ask, version, who, "t", [0, 1]) == [0, 0]
    stale = (who[0], who[1], who[2] - 1)
    assert await add(ask, version, stale, "t", [0]) == [47 if version < 2 else 90]


@pytest.mark.parametrize("version", [4, 5])
async def test_partitions_are_asked_about_without_being_added(ask: Asking, version: int) -> None:
    await ask.create("t", 2)
    who = await held(ask)
    await add(ask, version, who, "t", [0])
    assert await add(ask, version, who, "t", [0, 1], verify_only=True) == [0, 120]


@pytest.mark.parametrize("version", range(6))
async def test_an_end_tells_the_next_epoch_from_version_5_on(ask: Asking, version: int) -> None:
    await ask.create("t")
    who = await held(ask)
    assert await write(ask, who, "t") == 0
    answer = await ask(Api.END_TXN, version, committed=True, **fields(who))
    assert answer.error_code == 0
    assert (answer.producer_id, answer.producer_epoch) == ((who[1], 1) if version >= 5 else (-1, -1))
    stale = (who[0], who[1], who[2] + 7)
    answer = await ask(Api.END_TXN, version, committed=True, **fields(stale))
    assert answer.error_code == (47 if version < 2 else 90)


async def offsets(ask: Asking, version: int, who: Who, group: str, offset: int) -> int:
    request = m.TxnOffsetCommitRequest
    partition = request.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [request.TxnOffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = await ask(Api.TXN_OFFSET_COMMIT, version, group_id=group, topics=topics, **fields(who))
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def fetched(ask: Asking, version: int, group: str, *, stable: bool) -> tuple[int, int]:
    request = m.OffsetFetchRequest
    if version < 8:
        topics = [request.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        answer = await ask(Api.OFFSET_FETCH, version, group_id=group, topics=topics, require_stable=stable)
        found = answer.topics[0].partitions[0]
    else:
        wanted = [request.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        answer = await ask(
            Api.OFFSET_FETCH,
            version,
            groups=[request.OffsetFetchRequestGroup(group_id=group, topics=wanted)],
            require_stable=stable,
        )
        found = answer.groups[0].topics[0].partitions[0]
    return found.error_code, found.committed_offset


@pytest.mark.parametrize("version", range(6))
async def test_offsets_wait_for_the_end_of_their_transaction(ask: Asking, version: int) -> None:
    await ask.create("t")
    who = await held(ask)
    if version < 5:
        refused = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
        assert await offsets(ask, version, who, "g", 5) == refused
        added = await ask(Api.ADD_OFFSETS_TO_TXN, min(version, 4), group_id="g", **fields(who))
        assert added.error_code == 0
    assert await offsets(ask, version, who, "g", 5) == 0
    for asked in (7, 9):
        assert await fetched(ask, asked, "g", stable=True) == (88, -1)
        assert await fetched(ask, asked, "g", stable=False) == (0, -1)
    assert (await ask(Api.END_TXN, 4, committed=True, **fields(who))).error_code == 0
    for asked in (7, 9):
        assert await fetched(ask, asked, "g", stable=True) == (0, 5)
    assert await offsets(ask, version, (who[0], who[1], 9), "g", 5) == 47


async def test_transactions_are_described_and_listed(ask: Asking) -> None:
    await ask.create("t", 2)
    one, two = await held(ask, "app-one"), await held(ask, "app-two")
    await add(ask, 3, one, "t", [1, 0])
    answer = await ask(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["app-one", "app-two", "none", ""])
    states = [(s.error_code, s.transaction_state, s.producer_epoch) for s in answer.transaction_states]
    assert states == [(0, "Ongoing", 0), (0, "Empty", 0), (105, "", 0), (42, "", 0)]
    first = answer.transaction_states[0]
    assert [(topic.topic, topic.partitions) for topic in first.topics] == [("t", [0, 1])]
    assert (first.producer_id, first.transaction_timeout_ms) == (one[1], 60_000)
    assert first.transaction_start_time_ms > 0

    async def listed(version: int = 2, **filters: Any) -> list[str]:
        found = await ask(Api.LIST_TRANSACTIONS, version, **filters)
        assert found.error_code == 0
        return sorted(state.transactional_id for state in found.transaction_states)

    assert await listed(0) == ["app-one", "app-two"]
    assert await listed(state_filters=["Ongoing"]) == ["app-one"]
    assert await listed(producer_id_filters=[two[1]]) == ["app-two"]
    assert await listed(duration_filter=3_600_000, state_filters=["Ongoing"]) == []
    assert await listed(transactional_id_pattern=".*-two") == ["app-two"]
    assert await listed(transactional_id_pattern="-two") == []
    unknown = await ask(Api.LIST_TRANSACTIONS, state_filters=["ongoing", "Dead"])
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (["ongoing"], [])
    refused = await ask(Api.LIST_TRANSACTIONS, transactional_id_pattern="(")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert await listed(transactional_id_pattern="(" * 40 + ")" * 40) == []
    assert await listed(transactional_id_pattern="(?i)APP-\\pL+") == ["app-one", "app-two"]


@pytest.mark.parametrize("version", range(3, versions(Api.INIT_PRODUCER_ID)[1] + 1))
async def test_a_fenced_producer_is_told_so_in_the_number_of_its_version(ask: Asking, version: int) -> None:
    who = await held(ask)
    await held(ask)
    answer = await ask(Api.INIT_PRODUCER_ID, version, transaction_timeout_ms=60_000, **fields(who))
    assert (answer.error_code, answer.producer_id) == (47 if version < 4 else 90, -1)


async def test_an_open_transaction_goes_on_after_a_stop_and_a_decided_one_stays_decided(
    start: Callable[..., Awaitable[Asking]],
) -> None:
    ask = await start()
    await ask.create("t")
    await ask.create("u")
    one, two = await held(ask, "one"), await held(ask, "two")
    assert [await write(ask, one, "t"), await write(ask, two, "u")] == [0, 0]
    assert (await ask(Api.END_TXN, committed=True, **fields(one))).error_code == 0
    assert await offsets(ask, 5, two, "g", 5) == 0
    ask = await start()
    answer = await ask(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["one", "two"])
    assert [s.transaction_state for s in answer.transaction_states] == ["CompleteCommit", "Ongoing"]
    first, second = ask.broker.partition("t", 0), ask.broker.partition("u", 0)
    assert first is not None
    assert second is not None
    assert (first.last_stable_offset, second.last_stable_offset) == (2, 0)
    assert (await ask(Api.END_TXN, committed=True, **fields(two))).error_code == 0
    assert await fetched(ask, 9, "g", stable=True) == (0, 5)


async def test_no_batch_joins_a_transaction_that_was_decided_and_is_being_marked(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first protocol, which keeps the epoch."""
    monkeypatch.setattr(endings, "_MARKED_AT_ONCE", 1)
    await ask.create("a")
    await ask.create("b")
    who = await held(ask)
    await add(ask, 3, who, "a", [0])
    await add(ask, 3, who, "b", [0])
    assert [await write(ask, who, topic, version=9) for topic in ("a", "b")] == [0, 0]
    loop = asyncio.get_running_loop()
    call_soon, turns = loop.call_soon, []

    def hold_markers(callback: Any, *arguments: Any, **how: Any) -> Any:
        if getattr(callback, "__name__", "") == "_mark_some":
            turns.append(lambda: callback(*arguments))
            return None
        return call_soon(callback, *arguments, **how)

    monkeypatch.setattr(loop, "call_soon", hold_markers)
    ended = await ask(Api.END_TXN, 4, committed=True, **fields(who))
    assert (ended.error_code, len(turns)) == (0, 1)
    assert await write(ask, who, "b", sequence=1, version=9) == ErrorCode.NOT_ENOUGH_REPLICAS
    monkeypatch.setattr(loop, "call_soon", call_soon)
    turns.pop()()
    await asyncio.sleep(0)
    await add(ask, 3, who, "b", [0])
    assert await write(ask, who, "b", sequence=1, version=9) == 0
