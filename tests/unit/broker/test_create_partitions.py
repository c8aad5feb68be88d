from __future__ import annotations

import pytest

from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking


async def grow(
    ask: Asking,
    name: str,
    count: int,
    assignments: list[list[int]] | None = None,
    *,
    version: int | None = None,
    validate_only: bool = False,
) -> int:
    request = m.CreatePartitionsRequest
    given = None
    if assignments is not None:
        given = [request.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    response = await ask(
        Api.CREATE_PARTITIONS,
        version,
        topics=[request.CreatePartitionsTopic(name=name, count=count, assignments=given)],
        validate_only=validate_only,
    )
    (result,) = response.results
    return int(result.error_code)


def partitions(ask: Asking, name: str) -> int:
    topic = ask.broker.catalog.topic(name)
    assert topic is not None
    return topic.partitions


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_grows(ask: Asking, version: int) -> None:
    before = await ask.create("orders", 2)
    assert await grow(ask, "orders", 4, version=version) == 0
    assert partitions(ask, "orders") == 4
    await ask.append("orders", 1, index=3)
    topic = ask.broker.catalog.topic("orders")
    assert topic is not None
    assert topic.id == before.id


@pytest.mark.parametrize("count", [2, 1, 0, -1, 1_001])
async def test_a_topic_neither_shrinks_nor_grows_too_large(ask: Asking, count: int) -> None:
    await ask.create("orders", 2)
    assert await grow(ask, "orders", count) == ErrorCode.INVALID_PARTITIONS
    assert partitions(ask, "orders") == 2


@pytest.mark.parametrize("assignments", [[], [[1]], [[1], [1], [1]], [[1], [2]], [[1], []], [[1], [1, 1]]])
async def test_an_assignment_that_does_not_fit_is_refused(ask: Asking, assignments: list[list[int]]) -> None:
    await ask.create("orders", 1)
    assert await grow(ask, "orders", 3, assignments) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert partitions(ask, "orders") == 1


async def test_new_partitions_may_be_assigned_by_hand(ask: Asking) -> None:
    await ask.create("orders", 1)
    assert await grow(ask, "orders", 3, [[1], [1]]) == 0
    assert partitions(ask, "orders") == 3


async def test_validation_alone_adds_nothing(ask: Asking) -> None:
    await ask.create("orders", 1)
    assert await grow(ask, "orders", 3, validate_only=True) == 0
    assert partitions(ask, "orders") == 1


async def test_only_a_topic_that_is_there_grows(ask: Asking) -> None:
    assert await grow(ask, "nope", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_named_twice_does_not_grow(ask: Asking) -> None:
    await ask.create("orders", 1)
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic
    wanted = [topic(name="orders", count=count, assignments=None) for count in (2, 3)]
    response = await ask(Api.CREATE_PARTITIONS, topics=wanted)
    assert [(r.name, r.error_code) for r in response.results] == [("orders", ErrorCode.INVALID_REQUEST)]
    assert partitions(ask, "orders") == 1
