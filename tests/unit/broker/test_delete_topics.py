from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.broker.topics.topic import NO_TOPIC_ID
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

UNKNOWN_ID = bytes(range(16))


def state(name: str | None = None, topic_id: bytes = NO_TOPIC_ID) -> Any:
    return m.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id)


async def outcomes(call: BrokerCalls, *topics: Any) -> list[tuple[str | None, int]]:
    response = await call(Api.DELETE_TOPICS, topics=list(topics))
    return [(answer.name, answer.error_code) for answer in response.responses]


@pytest.mark.parametrize("version", range(1, 6))
async def test_old_versions_delete_by_name(call: BrokerCalls, version: int) -> None:
    await call.create("orders")
    response = await call(Api.DELETE_TOPICS, version, topic_names=["orders", "nope"])
    assert {(r.name, r.error_code) for r in response.responses} == {("orders", 0), ("nope", 3)}
    assert call.broker.catalog.topic("orders") is None
    assert call.broker.partition("orders", 0) is None


async def test_a_topic_is_deleted_by_name_or_by_id(call: BrokerCalls) -> None:
    await call.create("a")
    b = await call.create("b")
    assert await outcomes(call, state("a"), state(topic_id=b.id)) == [("a", 0), ("b", 0)]
    assert call.broker.catalog.topics() == []


async def test_deleting_a_topic_removes_its_files(call: BrokerCalls, tmp_path: Path) -> None:
    await call.create("orders", 3)
    await call.append("orders", 1, 2, 3)
    await outcomes(call, state("orders"))
    assert list((tmp_path / "data" / "topics").iterdir()) == []


async def test_deleting_a_topic_deletes_its_committed_offsets(call: BrokerCalls) -> None:
    await call.create("orders")
    commit = m.OffsetCommitRequest
    rows = [commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    await call(
        Api.OFFSET_COMMIT,
        9,
        group_id="readers",
        generation_id_or_member_epoch=-1,
        topics=[commit.OffsetCommitRequestTopic(name="orders", partitions=rows)],
    )
    assert call.broker.groups.fetch("readers", "orders", 0) is not None
    await outcomes(call, state("orders"))
    await call.create("orders")
    assert call.broker.groups.fetch("readers", "orders", 0) is None


async def test_a_missing_topic_gets_the_error_of_its_name_or_of_its_id(call: BrokerCalls) -> None:
    assert await outcomes(call, state("nope"), state(topic_id=UNKNOWN_ID)) == [
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_deleting_an_invalid_topic_name_is_an_unknown_topic(call: BrokerCalls) -> None:
    assert await outcomes(call, state("../x")) == [("../x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_ambiguous_requests_delete_nothing(call: BrokerCalls) -> None:
    topic = await call.create("orders")
    invalid = ErrorCode.INVALID_REQUEST
    assert await outcomes(call, state("orders", topic.id)) == [("orders", invalid)]
    assert await outcomes(call, state()) == [(None, invalid)]
    assert await outcomes(call, state("orders"), state("orders")) == [("orders", invalid)]
    assert await outcomes(call, state(topic_id=topic.id), state(topic_id=topic.id)) == [(None, invalid)]
    assert await outcomes(call, state("orders"), state(topic_id=topic.id)) == [("orders", invalid)]
    assert call.broker.catalog.topic("orders") is topic


async def test_the_id_of_a_deleted_topic_does_not_delete_its_successor(call: BrokerCalls) -> None:
    old = await call.create("orders")
    await outcomes(call, state("orders"))
    new = await call.create("orders")
    assert await outcomes(call, state(topic_id=old.id)) == [(None, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert call.broker.catalog.topic("orders") is new
