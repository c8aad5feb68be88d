"""Requests that repeat names, and requests whose results exceed the limit of one response."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.records import build_batch
from headrace.wire import Api, versions
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]

TOPIC, BROKER = 2, 4


async def join(call: BrokerCalls, group_id: str, subscription: bytes) -> None:
    """Create a group with one member. Version 3 does not require a member id first."""
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="own", metadata=subscription)
    answer = await call(
        Api.JOIN_GROUP,
        3,
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="own",
        protocols=[protocol],
    )
    assert answer.error_code == 0
    await call(Api.SYNC_GROUP, 3, group_id=group_id, generation_id=1, member_id=answer.member_id)


async def commit(call: BrokerCalls, group_id: str, topic: str, indexes: range, metadata: str = "") -> None:
    request = m.OffsetCommitRequest
    partitions = [
        request.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=index, committed_metadata=metadata
        )
        for index in indexes
    ]
    topics = [request.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    answer = await call(
        Api.OFFSET_COMMIT, 8, group_id=group_id, generation_id_or_member_epoch=-1, topics=topics
    )
    assert {row.error_code for row in answer.topics[0].partitions} == {0}


async def write(call: BrokerCalls, topic: str, index: int, producers: int) -> None:
    partition = call.broker.partition(topic, index)
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


async def test_a_repeated_group_is_described_once(call: BrokerCalls) -> None:
    await join(call, "g", b"s" * 1_000)
    answer = await call(Api.DESCRIBE_GROUPS, groups=["g", "none", *["g"] * 500, "none"])
    assert [group.group_id for group in answer.groups] == ["g", "none"]
    assert answer.groups[0].members[0].member_metadata == b"s" * 1_000


async def test_a_repeated_group_has_one_result_with_all_requested_topics(
    call: BrokerCalls,
) -> None:
    await call.create("t", 3)
    await commit(call, "g", "t", range(2), "m")
    requests = [offsets_of("g", [("t", [0, 0, 1])]), offsets_of("g", [("t", [1, 2]), ("t", [0])])]
    (group,) = (await call(Api.OFFSET_FETCH, 8, groups=requests * 100)).groups
    (topic,) = group.topics
    rows = [(row.partition_index, row.committed_offset, row.metadata) for row in topic.partitions]
    assert rows == [(0, 0, "m"), (1, 1, "m"), (2, -1, "")]
    (all_keys,) = (await call(Api.OFFSET_FETCH, 8, groups=[*requests, offsets_of("g", None)])).groups
    assert [row.partition_index for row in all_keys.topics[0].partitions] == [0, 1]
    old = m.OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [old(name="t", partition_indexes=[0, 0]), old(name="t", partition_indexes=[0])]
    answer = await call(Api.OFFSET_FETCH, 7, group_id="g", topics=topics)
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("t", 1)]


async def test_a_repeated_transactional_id_is_described_once(call: BrokerCalls) -> None:
    await call(Api.INIT_PRODUCER_ID, transactional_id="x", transaction_timeout_ms=60_000)
    answer = await call(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["x", "none"] * 100)
    assert [state.transactional_id for state in answer.transaction_states] == ["x", "none"]


async def test_a_repeated_partition_has_its_producers_described_once(call: BrokerCalls) -> None:
    await call.create("t", 2)
    await write(call, "t", 0, 3)
    topic = m.DescribeProducersRequest.TopicRequest
    topics = [topic(name="t", partition_indexes=[0, 0, 1]), topic(name="t", partition_indexes=[0, 9])]
    (answer,) = (await call(Api.DESCRIBE_PRODUCERS, topics=topics * 50)).topics
    rows = [(row.partition_index, row.error_code, len(row.active_producers)) for row in answer.partitions]
    assert rows == [(0, 0, 3), (1, 0, 0), (9, 3, 0)]


async def test_a_repeated_resource_is_described_once_with_all_requested_keys(call: BrokerCalls) -> None:
    await call.create("t")
    resource = m.DescribeConfigsRequest.DescribeConfigsResource

    async def describe(*keys: list[str] | None) -> list[list[str]]:
        resources = [
            resource(resource_type=TOPIC, resource_name="t", configuration_keys=names) for names in keys
        ]
        answer = await call(Api.DESCRIBE_CONFIGS, resources=resources)
        return [[config.name for config in result.configs] for result in answer.results]

    first, second = "retention.ms", "segment.bytes"
    assert await describe(*([[first, f"none-{number}"] for number in range(100)])) == [[first]]
    assert await describe([second], [first]) == [[first, second]]
    (all_keys,) = await describe([first], None, [second])
    assert {first, second} < set(all_keys)


async def test_repeated_keys_and_partitions_of_other_requests_get_one_response(call: BrokerCalls) -> None:
    await call.create("t", 2)
    rows = await call(Api.FIND_COORDINATOR, key_type=0, coordinator_keys=["g", "h"] * 50)
    assert [coordinator.key for coordinator in rows.coordinators] == ["g", "h"]
    topic = m.DescribeLogDirsRequest.DescribableLogDirTopic
    topics = [topic(topic="t", partitions=[1, 1, 0])] * 50
    (result,) = (await call(Api.DESCRIBE_LOG_DIRS, topics=topics)).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in result.topics] == [("t", [1, 0])]


@pytest.fixture
async def small_broker(start: StartBroker) -> BrokerCalls:
    """A broker with a small limit on the size of responses."""
    return await start(configs={"headrace.response.max.bytes": "4096"})


async def test_groups_that_exceed_the_response_limit_can_be_described_in_later_requests(
    small_broker: BrokerCalls,
) -> None:
    names = [f"g{number}" for number in range(5)]
    for name in names:
        await join(small_broker, name, name.encode() * 800)
    for version in range(versions(Api.DESCRIBE_GROUPS)[1] + 1):
        remaining, rounds = names, 0
        while remaining:
            answer = await small_broker(Api.DESCRIBE_GROUPS, version, groups=remaining)
            described_groups = [group for group in answer.groups if not group.error_code]
            assert all(group.members[0].member_metadata for group in described_groups)
            refused = [group for group in answer.groups if group.error_code]
            assert {group.error_code for group in refused} <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            assert all("4096 bytes" in group.error_message for group in refused if version >= 6)
            remaining, rounds = [group.group_id for group in refused], rounds + 1
        assert rounds > 1


async def test_the_first_group_is_described_whole_however_large(small_broker: BrokerCalls) -> None:
    await join(small_broker, "large", b"s" * 100_000)
    answer = await small_broker(Api.DESCRIBE_GROUPS, groups=["large", "large", "none"])
    assert len(answer.groups[0].members[0].member_metadata) == 100_000
    assert answer.groups[1].error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_groups_whose_offsets_exceed_the_response_limit_get_a_retriable_error(
    small_broker: BrokerCalls,
) -> None:
    await small_broker.create("t", 20)
    for name in ("a", "b", "c"):
        await commit(small_broker, name, "t", range(20), "m" * 50)
    answer = await small_broker(Api.OFFSET_FETCH, 8, groups=[offsets_of(name, None) for name in "abcd"])
    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("a", 0),
        ("b", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("c", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("d", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ]
    assert len(answer.groups[0].topics[0].partitions) == 20
    assert small_broker.broker.notices.limited == {"response-full": 1}


async def test_transactions_that_exceed_the_response_limit_get_a_retriable_error(
    small_broker: BrokerCalls,
) -> None:
    await small_broker.create("t", 100)
    request = m.AddPartitionsToTxnRequest
    for name in ("x", "y"):
        owner = await small_broker(Api.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=60_000)
        added = await small_broker(
            Api.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=owner.producer_id,
            v3_and_below_producer_epoch=owner.producer_epoch,
            v3_and_below_topics=[request.AddPartitionsToTxnTopic(name="t", partitions=list(range(100)))],
        )
        assert {
            row.partition_error_code for row in added.results_by_topic_v3_and_below[0].results_by_partition
        } == {0}
    answer = await small_broker(Api.DESCRIBE_TRANSACTIONS, transactional_ids=["x", "y"])
    assert [state.error_code for state in answer.transaction_states] == [
        0,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]
    assert len(answer.transaction_states[0].topics[0].partitions) == 100


async def test_partitions_whose_producers_exceed_the_response_limit_get_a_retriable_error(
    small_broker: BrokerCalls,
) -> None:
    await small_broker.create("t", 2)
    await write(small_broker, "t", 0, 20)
    await write(small_broker, "t", 1, 20)
    topics = [m.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 1])]
    (topic,) = (await small_broker(Api.DESCRIBE_PRODUCERS, topics=topics)).topics
    rows = [(row.error_code, len(row.active_producers)) for row in topic.partitions]
    assert rows == [(0, 20), (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)]


async def test_resources_whose_configurations_exceed_the_response_limit_are_refused(
    small_broker: BrokerCalls,
) -> None:
    await small_broker.create("t")
    resource = m.DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=BROKER, resource_name="1"),
        resource(resource_type=TOPIC, resource_name="t"),
    ]
    node = await small_broker(Api.DESCRIBE_CONFIGS, resources=resources, include_documentation=True)
    assert [result.error_code for result in node.results] == [0, ErrorCode.POLICY_VIOLATION]
    assert "4096 bytes" in node.results[1].error_message
