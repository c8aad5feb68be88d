from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.topics.broker_configs import Scope
from headrace.broker.topics.topic import NO_TOPIC_ID, Topic
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]

NOT_REQUESTED = -(2**31)


def topic(name: str | None = None, topic_id: bytes = NO_TOPIC_ID) -> Any:
    return m.MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id)


async def outcomes(
    call: BrokerCalls, version: int | None, *topics: Any, create: bool = False
) -> list[tuple[str | None, int]]:
    response = await call(Api.METADATA, version, topics=list(topics), allow_auto_topic_creation=create)
    return [(t.name, t.error_code) for t in response.topics]


async def test_every_version_shows_the_broker_and_its_topics(call: BrokerCalls) -> None:
    created = await call.create("orders", 2)
    for version in range(14):
        await check_version(call, created, version)


async def check_version(call: BrokerCalls, created: Topic, version: int) -> None:
    response = await call(Api.METADATA, version, topics=[topic("orders")])
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port, node.rack) == (1, "127.0.0.1", 9092, None)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert response.cluster_id == (call.broker.cluster_id if version >= 2 else None)
    (described,) = response.topics
    assert (described.error_code, described.name, described.is_internal) == (0, "orders", False)
    assert described.topic_id == (created.id if version >= 10 else NO_TOPIC_ID)
    assert [(p.partition_index, p.leader_id, p.error_code) for p in described.partitions] == [
        (0, 1, 0),
        (1, 1, 0),
    ]
    assert all(
        p.replica_nodes == p.isr_nodes == [1] and p.offline_replicas == [] for p in described.partitions
    )
    assert [p.leader_epoch for p in described.partitions] == ([0, 0] if version >= 7 else [-1, -1])


async def test_version_0_requests_all_topics_by_an_empty_list_and_later_ones_by_null(
    call: BrokerCalls,
) -> None:
    await call.create("a")
    await call.create("b")
    for version, topics, described in [
        (0, [], ["a", "b"]),
        (1, [], []),
        (1, None, ["a", "b"]),
        (13, [], []),
        (13, None, ["a", "b"]),
    ]:
        response = await call(Api.METADATA, version, topics=topics)
        assert [t.name for t in response.topics] == described


async def test_the_response_follows_every_change(call: BrokerCalls) -> None:
    async def described() -> list[tuple[str, int]]:
        response = await call(Api.METADATA, topics=None)
        return [(t.name, len(t.partitions)) for t in response.topics]

    a = await call.create("a")
    assert await described() == [("a", 1)]
    await call.create("b", 2)
    assert await described() == [("a", 1), ("b", 2)]
    growth = m.CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=3, assignments=None)
    await call(Api.CREATE_PARTITIONS, topics=[growth])
    assert await described() == [("a", 3), ("b", 2)]
    await call.broker.catalog.delete([a.id])
    assert await described() == [("b", 2)]


async def test_the_leader_epoch_rises_with_every_start(start: StartBroker) -> None:
    await (await start()).create("orders")
    for epoch in (1, 2):
        response = await (await start())(Api.METADATA, topics=[topic("orders")])
        assert [p.leader_epoch for p in response.topics[0].partitions] == [epoch]


async def test_a_partition_whose_files_cannot_be_used_has_no_leader(call: BrokerCalls) -> None:
    await call.create("orders", 2)
    call.broker.partitions.offline["orders", 1] = "the disk failed"
    response = await call(Api.METADATA, topics=[topic("orders")])
    good, bad = response.topics[0].partitions
    assert (good.error_code, good.leader_id, good.offline_replicas) == (0, 1, [])
    assert (bad.error_code, bad.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (bad.replica_nodes, bad.isr_nodes, bad.offline_replicas) == ([1], [], [1])


# By id


async def test_a_topic_is_shown_by_its_id(call: BrokerCalls) -> None:
    created = await call.create("orders")
    for version in (12, 13):
        assert await outcomes(call, version, topic(topic_id=created.id)) == [("orders", 0)]


async def test_an_unknown_id_is_an_error_with_the_id(call: BrokerCalls) -> None:
    response = await call(Api.METADATA, topics=[topic(topic_id=bytes(range(16)))])
    (described,) = response.topics
    assert (described.error_code, described.name, described.topic_id) == (
        ErrorCode.UNKNOWN_TOPIC_ID,
        None,
        bytes(range(16)),
    )


async def test_topic_ids_take_precedence_over_names(call: BrokerCalls) -> None:
    created = await call.create("orders")
    await call.create("other")
    assert await outcomes(call, 12, topic("other"), topic(topic_id=created.id)) == [("orders", 0)]


@pytest.mark.parametrize("version", [10, 11])
async def test_versions_10_and_11_refuse_topic_ids(call: BrokerCalls, version: int) -> None:
    created = await call.create("orders")
    assert await outcomes(call, version, topic("orders", created.id)) == [
        ("orders", ErrorCode.INVALID_REQUEST)
    ]
    assert await outcomes(call, version, topic(topic_id=created.id)) == [("", ErrorCode.INVALID_REQUEST)]


async def test_neither_name_nor_id_is_an_invalid_request(call: BrokerCalls) -> None:
    assert await outcomes(call, 12, topic()) == [("", ErrorCode.INVALID_REQUEST)]


# Topics that do not exist


async def test_an_unknown_topic_is_created_if_both_sides_allow_it(call: BrokerCalls) -> None:
    assert await outcomes(call, 12, topic("orders"), create=True) == [("orders", 0)]
    assert call.broker.partition("orders", 0) is not None


async def test_old_versions_cannot_disable_topic_creation(call: BrokerCalls) -> None:
    response = await call(Api.METADATA, 3, topics=[topic("orders")])
    assert [t.error_code for t in response.topics] == [0]


async def test_the_client_can_disable_topic_creation(call: BrokerCalls) -> None:
    assert await outcomes(call, 12, topic("orders")) == [("orders", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert call.broker.catalog.topics() == []


async def test_the_broker_can_disable_topic_creation(start: StartBroker) -> None:
    call = await start(auto_create_topics=False)
    assert await outcomes(call, 12, topic("a"), create=True) == [("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    allowed = {"auto.create.topics.enable": "true"}
    await call.broker.catalog.alter_broker([(Scope.NODE, lambda current: allowed)])
    assert await outcomes(call, 12, topic("a"), create=True) == [("a", 0)]


async def test_a_request_for_all_topics_creates_none(call: BrokerCalls) -> None:
    await call(Api.METADATA, topics=None, allow_auto_topic_creation=True)
    assert call.broker.catalog.topics() == []


@pytest.mark.parametrize("create", [True, False])
async def test_an_invalid_topic_name_is_an_invalid_topic(call: BrokerCalls, create: bool) -> None:
    for name in ("", "..", "../x", "a\0", "x" * 250):
        results = await outcomes(call, 12, topic(name), create=create)
        assert results == [(name, ErrorCode.INVALID_TOPIC_EXCEPTION)]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__cluster_metadata"])
async def test_a_request_creates_none_of_kafkas_own_topics(call: BrokerCalls, name: str) -> None:
    results = await outcomes(call, 12, topic(name), create=True)
    assert results == [(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_metadata_reports_why_a_topic_could_not_be_created(start: StartBroker) -> None:
    call = await start(topics_max=1)
    results = await outcomes(call, 12, topic("a"), topic("b"), create=True)
    assert results == [("a", 0), ("b", ErrorCode.POLICY_VIOLATION)]


async def test_a_repeated_topic_is_in_the_response_once(call: BrokerCalls) -> None:
    assert await outcomes(call, 12, topic("a"), topic("a"), create=True) == [("a", 0)]


# Operations


async def test_operations_are_sent_only_on_request(call: BrokerCalls) -> None:
    await call.create("orders")
    response_without = await call(Api.METADATA, 8, topics=None)
    assert (
        response_without.cluster_authorized_operations,
        response_without.topics[0].topic_authorized_operations,
    ) == (NOT_REQUESTED,) * 2
    response = await call(
        Api.METADATA,
        8,
        topics=None,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (
        8096,
        3576,
    )
    last_response = await call(Api.METADATA, topics=None)
    assert last_response.topics[0].topic_authorized_operations == NOT_REQUESTED
