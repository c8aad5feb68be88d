from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.broker.topic import NO_TOPIC_ID
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

NOBODYS_ID = bytes(range(16))


def state(name: str | None = None, topic_id: bytes = NO_TOPIC_ID) -> Any:
    return m.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id)


async def outcomes(ask: Asking, *topics: Any) -> list[tuple[str | None, int]]:
    response = await ask(Api.DELETE_TOPICS, topics=list(topics))
    return [(answer.name, answer.error_code) for answer in response.responses]


@pytest.mark.parametrize("version", range(1, 6))
async def test_old_versions_delete_by_name(ask: Asking, version: int) -> None:
    await ask.create("orders")
    response = await ask(Api.DELETE_TOPICS, version, topic_names=["orders", "nope"])
    assert {(r.name, r.error_code) for r in response.responses} == {("orders", 0), ("nope", 3)}
    assert ask.broker.catalog.topic("orders") is None
    assert ask.broker.partition("orders", 0) is None


async def test_a_topic_is_deleted_by_name_or_by_id(ask: Asking) -> None:
    await ask.create("a")
    b = await ask.create("b")
    assert await outcomes(ask, state("a"), state(topic_id=b.id)) == [("a", 0), ("b", 0)]
    assert ask.broker.catalog.topics() == []


async def test_the_files_of_a_deleted_topic_are_gone(ask: Asking, tmp_path: Path) -> None:
    await ask.create("orders", 3)
    await ask.append("orders", 1, 2, 3)
    await outcomes(ask, state("orders"))
    assert list((tmp_path / "data" / "topics").iterdir()) == []


async def test_the_committed_offsets_of_a_deleted_topic_are_gone(ask: Asking) -> None:
    await ask.create("orders")
    commit = m.OffsetCommitRequest
    rows = [commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    await ask(
        Api.OFFSET_COMMIT,
        9,
        group_id="readers",
        generation_id_or_member_epoch=-1,
        topics=[commit.OffsetCommitRequestTopic(name="orders", partitions=rows)],
    )
    assert ask.broker.groups.fetch("readers", "orders", 0) is not None
    await outcomes(ask, state("orders"))
    await ask.create("orders")
    assert ask.broker.groups.fetch("readers", "orders", 0) is None


async def test_what_is_not_there_is_unknown_by_the_way_it_was_asked_for(ask: Asking) -> None:
    assert await outcomes(ask, state("nope"), state(topic_id=NOBODYS_ID)) == [
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_a_name_that_no_topic_can_have_is_unknown(ask: Asking) -> None:
    assert await outcomes(ask, state("../x")) == [("../x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_requests_that_could_mean_two_things_delete_nothing(ask: Asking) -> None:
    topic = await ask.create("orders")
    invalid = ErrorCode.INVALID_REQUEST
    assert await outcomes(ask, state("orders", topic.id)) == [("orders", invalid)]
    assert await outcomes(ask, state()) == [(None, invalid)]
    assert await outcomes(ask, state("orders"), state("orders")) == [("orders", invalid)]
    assert await outcomes(ask, state(topic_id=topic.id), state(topic_id=topic.id)) == [(None, invalid)]
    assert await outcomes(ask, state("orders"), state(topic_id=topic.id)) == [("orders", invalid)]
    assert ask.broker.catalog.topic("orders") is topic


async def test_an_id_of_before_does_not_delete_the_topic_of_now(ask: Asking) -> None:
    old = await ask.create("orders")
    await outcomes(ask, state("orders"))
    new = await ask.create("orders")
    assert await outcomes(ask, state(topic_id=old.id)) == [(None, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert ask.broker.catalog.topic("orders") is new
