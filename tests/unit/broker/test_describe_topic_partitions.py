from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.handlers import describe_topic_partitions
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Cursor = tuple[str, int]
Page = list[tuple[str, list[int]]]


async def respond(ask: Asking, *names: str, limit: int = 2000, cursor: Cursor | None = None) -> Any:
    request = m.DescribeTopicPartitionsRequest
    at = None if cursor is None else request.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    topics = [request.TopicRequest(name=name) for name in names]
    return await ask(Api.DESCRIBE_TOPIC_PARTITIONS, topics=topics, response_partition_limit=limit, cursor=at)


async def page(
    ask: Asking, *names: str, limit: int = 2000, cursor: Cursor | None = None
) -> tuple[Page, Cursor | None]:
    response = await respond(ask, *names, limit=limit, cursor=cursor)
    shown = [(t.name, [p.partition_index for p in t.partitions]) for t in response.topics]
    following = response.next_cursor
    return shown, None if following is None else (following.topic_name, following.partition_index)


@pytest.fixture
async def three(ask: Asking) -> Asking:
    for name, count in [("b", 3), ("a", 3), ("c", 1)]:
        await ask.create(name, count)
    return ask


async def test_topics_come_in_the_order_of_their_names(three: Asking) -> None:
    everything = [("a", [0, 1, 2]), ("b", [0, 1, 2]), ("c", [0])]
    assert await page(three, "c", "a", "b", "a") == (everything, None)
    assert await page(three) == (everything, None)


async def test_what_is_told_of_a_partition(ask: Asking) -> None:
    created = await ask.create("orders")
    response = await respond(ask, "orders")
    (topic,) = response.topics
    assert (topic.topic_id, topic.is_internal, topic.topic_authorized_operations) == (created.id, False, 3576)
    (part,) = topic.partitions
    assert (part.error_code, part.leader_id, part.leader_epoch) == (0, 1, 0)
    assert part.replica_nodes == part.isr_nodes == [1]
    assert part.eligible_leader_replicas == part.last_known_elr == part.offline_replicas == []


@pytest.mark.parametrize(
    ("limit", "shown", "following"),
    [
        (2, [("a", [0, 1])], ("a", 2)),
        (3, [("a", [0, 1, 2])], ("b", 0)),
        (4, [("a", [0, 1, 2]), ("b", [0])], ("b", 1)),
        (7, [("a", [0, 1, 2]), ("b", [0, 1, 2]), ("c", [0])], None),
        (0, [("a", [0])], ("a", 1)),
        (-5, [("a", [0])], ("a", 1)),
    ],
)
async def test_a_page_ends_at_its_limit(
    three: Asking, limit: int, shown: Page, following: Cursor | None
) -> None:
    assert await page(three, limit=limit) == (shown, following)


@pytest.mark.parametrize("names", [("a", "b", "c"), ()], ids=["by name", "all"])
async def test_the_pages_together_are_everything_once(three: Asking, names: tuple[str, ...]) -> None:
    for limit in range(1, 9):
        seen: list[tuple[str, int]] = []
        cursor: Cursor | None = None
        while True:
            shown, cursor = await page(three, *names, limit=limit, cursor=cursor)
            seen += [(name, index) for name, indexes in shown for index in indexes]
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


async def test_a_client_cannot_ask_for_too_large_a_page(
    three: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_topic_partitions, "PAGE_PARTITIONS_MAX", 4)
    shown, following = await page(three, limit=2**31 - 1)
    assert (shown, following) == ([("a", [0, 1, 2]), ("b", [0])], ("b", 1))


async def test_unknown_topics_are_told_apart_from_impossible_ones(three: Asking) -> None:
    response = await respond(three, "nope", "../x", "c")
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("../x", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("c", 0),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


async def test_a_cursor_at_a_topic_that_is_gone_goes_on_behind_it(three: Asking) -> None:
    assert await page(three, cursor=("aa", 5)) == ([("b", [0, 1, 2]), ("c", [0])], None)


async def test_a_cursor_behind_the_last_partition_shows_none_of_the_topic(three: Asking) -> None:
    assert await page(three, cursor=("b", 9)) == ([("b", []), ("c", [0])], None)


@pytest.mark.parametrize("cursor", [("zzz", 0), ("a", -1)])
async def test_a_cursor_that_does_not_belong_to_the_request_is_invalid(three: Asking, cursor: Cursor) -> None:
    response = await respond(three, "b", "a", cursor=cursor)
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("b", ErrorCode.INVALID_REQUEST),
        ("a", ErrorCode.INVALID_REQUEST),
    ]
