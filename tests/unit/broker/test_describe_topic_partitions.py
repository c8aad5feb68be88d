from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.handlers import metadata
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

Cursor = tuple[str, int]
Page = list[tuple[str, list[int]]]


async def respond(call: BrokerCalls, *names: str, limit: int = 2000, cursor: Cursor | None = None) -> Any:
    request = m.DescribeTopicPartitionsRequest
    wire_cursor = None if cursor is None else request.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    topics = [request.TopicRequest(name=name) for name in names]
    return await call(
        Api.DESCRIBE_TOPIC_PARTITIONS, topics=topics, response_partition_limit=limit, cursor=wire_cursor
    )


async def page(
    call: BrokerCalls, *names: str, limit: int = 2000, cursor: Cursor | None = None
) -> tuple[Page, Cursor | None]:
    response = await respond(call, *names, limit=limit, cursor=cursor)
    topics = [(t.name, [p.partition_index for p in t.partitions]) for t in response.topics]
    next_cursor = response.next_cursor
    return topics, None if next_cursor is None else (next_cursor.topic_name, next_cursor.partition_index)


@pytest.fixture
async def three_topics(call: BrokerCalls) -> BrokerCalls:
    for name, count in [("b", 3), ("a", 3), ("c", 1)]:
        await call.create(name, count)
    return call


async def test_topics_are_in_the_order_of_their_names(three_topics: BrokerCalls) -> None:
    all_partitions = [("a", [0, 1, 2]), ("b", [0, 1, 2]), ("c", [0])]
    assert await page(three_topics, "c", "a", "b", "a") == (all_partitions, None)
    assert await page(three_topics) == (all_partitions, None)


async def test_the_description_of_a_partition(call: BrokerCalls) -> None:
    created = await call.create("orders")
    response = await respond(call, "orders")
    (topic,) = response.topics
    assert (topic.topic_id, topic.is_internal, topic.topic_authorized_operations) == (created.id, False, 3576)
    (part,) = topic.partitions
    assert (part.error_code, part.leader_id, part.leader_epoch) == (0, 1, 0)
    assert part.replica_nodes == part.isr_nodes == [1]
    assert part.eligible_leader_replicas == part.last_known_elr == part.offline_replicas == []


@pytest.mark.parametrize(
    ("limit", "topics", "next_cursor"),
    [
        (2, [("a", [0, 1])], ("a", 2)),
        (3, [("a", [0, 1, 2])], ("b", 0)),
        (4, [("a", [0, 1, 2]), ("b", [0])], ("b", 1)),
        (7, [("a", [0, 1, 2]), ("b", [0, 1, 2]), ("c", [0])], None),
        (0, [("a", [0])], ("a", 1)),
        (-5, [("a", [0])], ("a", 1)),
    ],
)
async def test_a_page_has_at_most_the_requested_number_of_partitions(
    three_topics: BrokerCalls, limit: int, topics: Page, next_cursor: Cursor | None
) -> None:
    assert await page(three_topics, limit=limit) == (topics, next_cursor)


@pytest.mark.parametrize("names", [("a", "b", "c"), ()], ids=["by name", "all"])
async def test_the_pages_together_have_every_partition_once(
    three_topics: BrokerCalls, names: tuple[str, ...]
) -> None:
    for limit in range(1, 9):
        partitions: list[tuple[str, int]] = []
        cursor: Cursor | None = None
        while True:
            topics, cursor = await page(three_topics, *names, limit=limit, cursor=cursor)
            partitions += [(name, index) for name, indexes in topics for index in indexes]
            if cursor is None:
                break
        assert partitions == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


async def test_the_broker_limits_the_number_of_partitions_of_a_page(
    three_topics: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "PAGE_PARTITIONS_MAX", 4)
    topics, next_cursor = await page(three_topics, limit=2**31 - 1)
    assert (topics, next_cursor) == ([("a", [0, 1, 2]), ("b", [0])], ("b", 1))


async def test_unknown_and_invalid_topic_names_get_different_errors(three_topics: BrokerCalls) -> None:
    response = await respond(three_topics, "nope", "../x", "c")
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("../x", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("c", 0),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


async def test_a_cursor_at_a_deleted_topic_continues_after_it(three_topics: BrokerCalls) -> None:
    assert await page(three_topics, cursor=("aa", 5)) == ([("b", [0, 1, 2]), ("c", [0])], None)


async def test_a_cursor_after_the_last_partition_skips_the_topic(three_topics: BrokerCalls) -> None:
    assert await page(three_topics, cursor=("b", 9)) == ([("b", []), ("c", [0])], None)


@pytest.mark.parametrize("cursor", [("zzz", 0), ("a", -1)])
async def test_a_cursor_that_does_not_belong_to_the_request_is_invalid(
    three_topics: BrokerCalls, cursor: Cursor
) -> None:
    response = await respond(three_topics, "b", "a", cursor=cursor)
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("b", ErrorCode.INVALID_REQUEST),
        ("a", ErrorCode.INVALID_REQUEST),
    ]
