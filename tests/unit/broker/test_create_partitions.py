from __future__ import annotations

import pytest

from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls


async def add_partitions(
    call: BrokerCalls,
    name: str,
    count: int,
    assignments: list[list[int]] | None = None,
    *,
    version: int | None = None,
    validate_only: bool = False,
) -> int:
    request = m.CreatePartitionsRequest
    wire_assignments = None
    if assignments is not None:
        wire_assignments = [request.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    response = await call(
        Api.CREATE_PARTITIONS,
        version,
        topics=[request.CreatePartitionsTopic(name=name, count=count, assignments=wire_assignments)],
        validate_only=validate_only,
    )
    (result,) = response.results
    return int(result.error_code)


def partition_count(call: BrokerCalls, name: str) -> int:
    topic = call.broker.catalog.topic(name)
    assert topic is not None
    return topic.partitions


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions_adds_partitions_to_a_topic(call: BrokerCalls, version: int) -> None:
    before = await call.create("orders", 2)
    assert await add_partitions(call, "orders", 4, version=version) == 0
    assert partition_count(call, "orders") == 4
    await call.append("orders", 1, index=3)
    topic = call.broker.catalog.topic("orders")
    assert topic is not None
    assert topic.id == before.id


@pytest.mark.parametrize("count", [2, 1, 0, -1, 1_001])
async def test_a_topic_neither_shrinks_nor_grows_too_large(call: BrokerCalls, count: int) -> None:
    await call.create("orders", 2)
    assert await add_partitions(call, "orders", count) == ErrorCode.INVALID_PARTITIONS
    assert partition_count(call, "orders") == 2


@pytest.mark.parametrize("assignments", [[], [[1]], [[1], [1], [1]], [[1], [2]], [[1], []], [[1], [1, 1]]])
async def test_an_assignment_that_does_not_fit_is_refused(
    call: BrokerCalls, assignments: list[list[int]]
) -> None:
    await call.create("orders", 1)
    assert await add_partitions(call, "orders", 3, assignments) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert partition_count(call, "orders") == 1


async def test_new_partitions_can_have_explicit_assignments(call: BrokerCalls) -> None:
    await call.create("orders", 1)
    assert await add_partitions(call, "orders", 3, [[1], [1]]) == 0
    assert partition_count(call, "orders") == 3


async def test_validate_only_adds_no_partitions(call: BrokerCalls) -> None:
    await call.create("orders", 1)
    assert await add_partitions(call, "orders", 3, validate_only=True) == 0
    assert partition_count(call, "orders") == 1


async def test_partitions_cannot_be_added_to_a_missing_topic(call: BrokerCalls) -> None:
    assert await add_partitions(call, "nope", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_that_is_named_twice_gets_no_partitions(call: BrokerCalls) -> None:
    await call.create("orders", 1)
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic
    topics = [topic(name="orders", count=count, assignments=None) for count in (2, 3)]
    response = await call(Api.CREATE_PARTITIONS, topics=topics)
    assert [(r.name, r.error_code) for r in response.results] == [("orders", ErrorCode.INVALID_REQUEST)]
    assert partition_count(call, "orders") == 1
