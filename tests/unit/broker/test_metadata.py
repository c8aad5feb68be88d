from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.broker_configs import Scope
from headrace.broker.topic import NO_TOPIC_ID, Topic
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]

NOT_ASKED = -(2**31)


def topic(name: str | None = None, topic_id: bytes = NO_TOPIC_ID) -> Any:
    return m.MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id)


async def outcomes(
    ask: Asking, version: int | None, *topics: Any, create: bool = False
) -> list[tuple[str | None, int]]:
    response = await ask(Api.METADATA, version, topics=list(topics), allow_auto_topic_creation=create)
    return [(t.name, t.error_code) for t in response.topics]


async def test_every_version_shows_the_broker_and_its_topics(ask: Asking) -> None:
    created = await ask.create("orders", 2)
    for version in range(14):
        await check_version(ask, created, version)


async def check_version(ask: Asking, created: Topic, version: int) -> None:
    response = await ask(Api.METADATA, version, topics=[topic("orders")])
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port, node.rack) == (1, "127.0.0.1", 9092, None)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert response.cluster_id == (ask.broker.cluster_id if version >= 2 else None)
    (shown,) = response.topics
    assert (shown.error_code, shown.name, shown.is_internal) == (0, "orders", False)
    assert shown.topic_id == (created.id if version >= 10 else NO_TOPIC_ID)
    assert [(p.partition_index, p.leader_id, p.error_code) for p in shown.partitions] == [
        (0, 1, 0),
        (1, 1, 0),
    ]
    assert all(p.replica_nodes == p.isr_nodes == [1] and p.offline_replicas == [] for p in shown.partitions)
    assert [p.leader_epoch for p in shown.partitions] == ([0, 0] if version >= 7 else [-1, -1])


async def test_version_0_asks_for_all_topics_by_none_and_later_ones_by_null(ask: Asking) -> None:
    await ask.create("a")
    await ask.create("b")
    for version, topics, shown in [
        (0, [], ["a", "b"]),
        (1, [], []),
        (1, None, ["a", "b"]),
        (13, [], []),
        (13, None, ["a", "b"]),
    ]:
        response = await ask(Api.METADATA, version, topics=topics)
        assert [t.name for t in response.topics] == shown


async def test_the_answer_follows_every_change(ask: Asking) -> None:
    async def shown() -> list[tuple[str, int]]:
        response = await ask(Api.METADATA, topics=None)
        return [(t.name, len(t.partitions)) for t in response.topics]

    a = await ask.create("a")
    assert await shown() == [("a", 1)]
    await ask.create("b", 2)
    assert await shown() == [("a", 1), ("b", 2)]
    grown = m.CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=3, assignments=None)
    await ask(Api.CREATE_PARTITIONS, topics=[grown])
    assert await shown() == [("a", 3), ("b", 2)]
    await ask.broker.catalog.delete([a.id])
    assert await shown() == [("b", 2)]


async def test_the_leader_epoch_rises_with_every_start(start: Starting) -> None:
    await (await start()).create("orders")
    for epoch in (1, 2):
        response = await (await start())(Api.METADATA, topics=[topic("orders")])
        assert [p.leader_epoch for p in response.topics[0].partitions] == [epoch]


async def test_a_partition_whose_files_cannot_be_used_has_no_leader(ask: Asking) -> None:
    await ask.create("orders", 2)
    ask.broker.partitions.offline["orders", 1] = "the disk said no"
    response = await ask(Api.METADATA, topics=[topic("orders")])
    good, bad = response.topics[0].partitions
    assert (good.error_code, good.leader_id, good.offline_replicas) == (0, 1, [])
    assert (bad.error_code, bad.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (bad.replica_nodes, bad.isr_nodes, bad.offline_replicas) == ([1], [], [1])


# By id


async def test_a_topic_is_shown_by_its_id(ask: Asking) -> None:
    created = await ask.create("orders")
    for version in (12, 13):
        assert await outcomes(ask, version, topic(topic_id=created.id)) == [("orders", 0)]


async def test_an_unknown_id_is_answered_with_the_id(ask: Asking) -> None:
    response = await ask(Api.METADATA, topics=[topic(topic_id=bytes(range(16)))])
    (shown,) = response.topics
    assert (shown.error_code, shown.name, shown.topic_id) == (
        ErrorCode.UNKNOWN_TOPIC_ID,
        None,
        bytes(range(16)),
    )


async def test_ids_take_precedence_over_names(ask: Asking) -> None:
    created = await ask.create("orders")
    await ask.create("other")
    assert await outcomes(ask, 12, topic("other"), topic(topic_id=created.id)) == [("orders", 0)]


@pytest.mark.parametrize("version", [10, 11])
async def test_versions_that_only_have_the_field_refuse_ids(ask: Asking, version: int) -> None:
    created = await ask.create("orders")
    assert await outcomes(ask, version, topic("orders", created.id)) == [
        ("orders", ErrorCode.INVALID_REQUEST)
    ]
    assert await outcomes(ask, version, topic(topic_id=created.id)) == [("", ErrorCode.INVALID_REQUEST)]


async def test_neither_name_nor_id_is_an_invalid_request(ask: Asking) -> None:
    assert await outcomes(ask, 12, topic()) == [("", ErrorCode.INVALID_REQUEST)]


# Topics that are not there


async def test_an_unknown_topic_is_created_if_both_sides_allow_it(ask: Asking) -> None:
    assert await outcomes(ask, 12, topic("orders"), create=True) == [("orders", 0)]
    assert ask.broker.partition("orders", 0) is not None


async def test_old_versions_cannot_forbid_it(ask: Asking) -> None:
    response = await ask(Api.METADATA, 3, topics=[topic("orders")])
    assert [t.error_code for t in response.topics] == [0]


async def test_the_client_can_forbid_it(ask: Asking) -> None:
    assert await outcomes(ask, 12, topic("orders")) == [("orders", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert ask.broker.catalog.topics() == []


async def test_the_broker_can_forbid_it(start: Starting) -> None:
    ask = await start(auto_create_topics=False)
    assert await outcomes(ask, 12, topic("a"), create=True) == [("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    allowed = {"auto.create.topics.enable": "true"}
    await ask.broker.catalog.alter_broker([(Scope.NODE, lambda current: allowed)])
    assert await outcomes(ask, 12, topic("a"), create=True) == [("a", 0)]


async def test_asking_for_all_topics_creates_none(ask: Asking) -> None:
    await ask(Api.METADATA, topics=None, allow_auto_topic_creation=True)
    assert ask.broker.catalog.topics() == []


@pytest.mark.parametrize("create", [True, False])
async def test_a_name_that_no_topic_can_have_is_invalid(ask: Asking, create: bool) -> None:
    for name in ("", "..", "../x", "a\0", "x" * 250):
        found = await outcomes(ask, 12, topic(name), create=create)
        assert found == [(name, ErrorCode.INVALID_TOPIC_EXCEPTION)]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__cluster_metadata"])
async def test_kafkas_own_topics_are_not_created_by_asking(ask: Asking, name: str) -> None:
    found = await outcomes(ask, 12, topic(name), create=True)
    assert found == [(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_why_a_topic_could_not_be_created_is_said(start: Starting) -> None:
    ask = await start(topics_max=1)
    found = await outcomes(ask, 12, topic("a"), topic("b"), create=True)
    assert found == [("a", 0), ("b", ErrorCode.POLICY_VIOLATION)]


async def test_a_topic_asked_for_twice_is_shown_once(ask: Asking) -> None:
    assert await outcomes(ask, 12, topic("a"), topic("a"), create=True) == [("a", 0)]


# Operations


async def test_operations_are_told_only_if_asked_for(ask: Asking) -> None:
    await ask.create("orders")
    quiet = await ask(Api.METADATA, 8, topics=None)
    assert (quiet.cluster_authorized_operations, quiet.topics[0].topic_authorized_operations) == (
        NOT_ASKED,
    ) * 2
    told = await ask(
        Api.METADATA,
        8,
        topics=None,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert (told.cluster_authorized_operations, told.topics[0].topic_authorized_operations) == (8096, 3576)
    again = await ask(Api.METADATA, topics=None)
    assert again.topics[0].topic_authorized_operations == NOT_ASKED
