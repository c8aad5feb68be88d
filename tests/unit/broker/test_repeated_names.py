"""Requests that name the same thing again and again, and requests for more than one response may hold."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.records import build_batch
from headrace.wire import Api, versions
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]

TOPIC, BROKER = 2, 4


async def join(ask: Asking, group_id: str, subscription: bytes) -> None:
    """Make a group of one member. Version 3 does not ask for a member id first."""
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="own", metadata=subscription)
    answer = await ask(
        Api.JOIN_GROUP,
        3,
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="own",
        protocols=[protocol],
    )
    assert answer.error_code == 0
    await ask(Api.SYNC_GROUP, 3, group_id=group_id, generation_id=1, member_id=answer.member_id)


async def commit(ask: Asking, group_id: str, topic: str, indexes: range, metadata: str = "") -> None:
    request = m.OffsetCommitRequest
    partitions = [
        request.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=index, committed_metadata=metadata
        )
        for index in indexes
    ]
    topics = [request.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    answer = await ask(
        Api.OFFSET_COMMIT, 8, group_id=group_id, generation_id_or_member_epoch=-1, topics=topics
    )
    assert {row.error_code for row in answer.topics[0].partitions} == {0}


async def write(ask: Asking, topic: str, index: int, producers: int) -> None:
    partition = ask.broker.partition(topic, index)
    assert partition is not None
    now_ms = int(time.time() * 1000)
    for producer_id in range(producers):
        batch = build_batch(
            [(b"k", b"v", ())],
            timestamp_ms=now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        accepted = partition.append(batch, now_ms, now_ms)
    assert accepted.durable is not None
    await accepted.durable


def offsets_of(group_id: str, topics: Any) -> Any:
    request = m.OffsetFetchRequest
    return request.OffsetFetchRequestGroup(
        group_id=group_id,
        topics=topics
        if topics is None
        else [
            request.OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics
        ],
    )


async def test_a_repeated_group_is_described_once(ask: Asking) -> None:
    await join(ask, "g", b"s" * 1_000)
    answer = await ask(Api.DESCRIBE_GROUPS, groups=["g", "none", *["g"] * 500, "none"])
    assert [group.group_id for group in answer.groups] == ["g", "none"]
    assert answer.groups[0].members[0].member_metadata == b"s" * 1_000


async def test_a_repeated_group_has_its_offsets_fetched_once_for_all_topics_that_are_named(
    ask: Asking,
) -> None:
    await ask.create("t", 3)
    await commit(ask, "g", "t", range(2), "m")
    named = [offsets_of("g", [("t", [0, 0, 1])]), offsets_of("g", [("t", [1, 2]), ("t", [0])])]
    (group,) = (await ask(Api.OFFSET_FETCH, 8, groups=named * 100)).groups
    (topic,) = group.topics
    rows = [(row.partition_index, row.committed_offset, row.metadata) for row in topic.partitions]
    assert rows == [(0, 0, "m"), (1, 1, "m"), (2, -1, "")]
    (every,) = (await ask(Api.OFFSET_FETCH, 8, groups=[*named, offsets_of("g", None)])).groups
    assert [row.partition_index for row in every.topics[0].partitions] == [0, 1]
    old = m.OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [old(name="t", partition_indexes=[0, 0]), old(name="t", partition_indexes=[0])]
    answer = await ask(Api.OFFSET_FETCH, 7, group_id="g", topics=topics)
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("t", 1)]


async def test_a_repeated_transactional_id_is_described_once(ask: Asking) -> None:
    await ask(Api.INIT_PRODUCER_ID, transactional_id="x", transaction_timeout_ms=60_000)
    answer = await ask(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["x", "none"] * 100)
    assert [state.transactional_id for state in answer.transaction_states] == ["x", "none"]


async def test_a_repeated_partition_has_its_producers_described_once(ask: Asking) -> None:
    await ask.create("t", 2)
    await write(ask, "t", 0, 3)
    topic = m.DescribeProducersRequest.TopicRequest
    topics = [topic(name="t", partition_indexes=[0, 0, 1]), topic(name="t", partition_indexes=[0, 9])]
    (answer,) = (await ask(Api.DESCRIBE_PRODUCERS, topics=topics * 50)).topics
    found = [(row.partition_index, row.error_code, len(row.active_producers)) for row in answer.partitions]
    assert found == [(0, 0, 3), (1, 0, 0), (9, 3, 0)]


async def test_a_repeated_resource_is_described_once_with_all_keys_that_are_named(ask: Asking) -> None:
    await ask.create("t")
    resource = m.DescribeConfigsRequest.DescribeConfigsResource

    async def described(*keys: list[str] | None) -> list[list[str]]:
        resources = [
            resource(resource_type=TOPIC, resource_name="t", configuration_keys=names) for names in keys
        ]
        answer = await ask(Api.DESCRIBE_CONFIGS, resources=resources)
        return [[config.name for config in result.configs] for result in answer.results]

    one, two = "retention.ms", "segment.bytes"
    assert await described(*([[one, f"none-{number}"] for number in range(100)])) == [[one]]
    assert await described([two], [one]) == [[one, two]]
    (every,) = await described([one], None, [two])
    assert {one, two} < set(every)


async def test_repeated_keys_and_partitions_of_other_requests_are_answered_once(ask: Asking) -> None:
    await ask.create("t", 2)
    found = await ask(Api.FIND_COORDINATOR, key_type=0, coordinator_keys=["g", "h"] * 50)
    assert [coordinator.key for coordinator in found.coordinators] == ["g", "h"]
    topic = m.DescribeLogDirsRequest.DescribableLogDirTopic
    topics = [topic(topic="t", partitions=[1, 1, 0])] * 50
    (result,) = (await ask(Api.DESCRIBE_LOG_DIRS, topics=topics)).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in result.topics] == [("t", [1, 0])]


@pytest.fixture
async def small(start: Starting) -> Asking:
    """A broker whose responses hold little."""
    return await start(configs={"headrace.response.max.bytes": "4096"})


async def test_groups_that_do_not_fit_into_the_response_can_be_described_in_the_next_ones(
    small: Asking,
) -> None:
    names = [f"g{number}" for number in range(5)]
    for name in names:
        await join(small, name, name.encode() * 800)
    for version in range(versions(Api.DESCRIBE_GROUPS)[1] + 1):
        left, rounds = names, 0
        while left:
            answer = await small(Api.DESCRIBE_GROUPS, version, groups=left)
            answered = [group for group in answer.groups if not group.error_code]
            assert all(group.members[0].member_metadata for group in answered)
            late = [group for group in answer.groups if group.error_code]
            assert {group.error_code for group in late} <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            assert all("4096 bytes" in group.error_message for group in late if version >= 6)
            left, rounds = [group.group_id for group in late], rounds + 1
        assert rounds > 1


async def test_the_first_group_is_answered_whole_however_large(small: Asking) -> None:
    await join(small, "large", b"s" * 100_000)
    answer = await small(Api.DESCRIBE_GROUPS, groups=["large", "large", "none"])
    assert len(answer.groups[0].members[0].member_metadata) == 100_000
    assert answer.groups[1].error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_offsets_that_do_not_fit_into_the_response_are_left_out_group_by_group(small: Asking) -> None:
    await small.create("t", 20)
    for name in ("a", "b", "c"):
        await commit(small, name, "t", range(20), "m" * 50)
    answer = await small(Api.OFFSET_FETCH, 8, groups=[offsets_of(name, None) for name in "abcd"])
    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("a", 0),
        ("b", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("c", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("d", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ]
    assert len(answer.groups[0].topics[0].partitions) == 20
    assert small.broker.notices.limited == {"response-full": 1}


async def test_transactions_that_do_not_fit_into_the_response_are_left_out(small: Asking) -> None:
    await small.create("t", 100)
    request = m.AddPartitionsToTxnRequest
    for name in ("x", "y"):
        held = await small(Api.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=60_000)
        added = await small(
            Api.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=held.producer_id,
            v3_and_below_producer_epoch=held.producer_epoch,
            v3_and_below_topics=[request.AddPartitionsToTxnTopic(name="t", partitions=list(range(100)))],
        )
        assert {
            row.partition_error_code for row in added.results_by_topic_v3_and_below[0].results_by_partition
        } == {0}
    answer = await small(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["x", "y"])
    assert [state.error_code for state in answer.transaction_states] == [
        0,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]
    assert len(answer.transaction_states[0].topics[0].partitions) == 100


async def test_partitions_whose_producers_do_not_fit_into_the_response_are_left_out(small: Asking) -> None:
    await small.create("t", 2)
    await write(small, "t", 0, 20)
    await write(small, "t", 1, 20)
    topics = [m.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 1])]
    (topic,) = (await small(Api.DESCRIBE_PRODUCERS, topics=topics)).topics
    found = [(row.error_code, len(row.active_producers)) for row in topic.partitions]
    assert found == [(0, 20), (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)]


async def test_resources_whose_configurations_do_not_fit_into_the_response_are_refused(small: Asking) -> None:
    await small.create("t")
    resource = m.DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=BROKER, resource_name="1"),
        resource(resource_type=TOPIC, resource_name="t"),
    ]
    node = await small(Api.DESCRIBE_CONFIGS, resources=resources, include_documentation=True)
    assert [result.error_code for result in node.results] == [0, ErrorCode.POLICY_VIOLATION]
    assert "4096 bytes" in node.results[1].error_message
