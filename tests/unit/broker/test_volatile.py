"""Topics in memory only: limited, labelled, empty after a restart, and no offset used twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.broker.metrics.collector import collect
from headrace.broker.storage.partitions import OFFSETS_PER_START
from headrace.records import build_batch
from headrace.truth import NotASourceOfTruth, expect_source_of_truth
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

NOW_MS = 1_700_000_000_000
StartBroker = Callable[..., Awaitable[BrokerCalls]]


def append(call: BrokerCalls, topic: str, values: list[bytes]) -> int:
    partition = call.broker.partition(topic, 0)
    assert partition is not None
    batch = build_batch([(b"k", value, []) for value in values], timestamp_ms=NOW_MS)
    accepted = partition.append(bytes(batch), NOW_MS, NOW_MS)
    assert accepted.durable is None, "a volatile topic has no disk to wait for"
    return accepted.appended.base_offset


async def set_config(call: BrokerCalls, topic: str, name: str, value: str) -> int:
    request = m.IncrementalAlterConfigsRequest
    change = request.AlterableConfig(name=name, config_operation=0, value=value)
    response = await call(
        Api.INCREMENTAL_ALTER_CONFIGS,
        resources=[request.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])],
    )
    return int(response.responses[0].error_code)


async def test_a_volatile_topic_is_never_on_disk_and_is_empty_at_new_offsets_after_a_restart(
    start: StartBroker, tmp_path: Path
) -> None:
    call = await start()
    topic = await call.create("flash", headrace_volatile="true")
    assert topic.is_volatile
    assert append(call, "flash", [b"a secret value", b"b"]) == 0
    assert append(call, "flash", [b"c"]) == 2
    partition = call.broker.partition("flash", 0)
    assert partition is not None
    assert partition.high_watermark == 3
    assert b"a secret value" in bytes(partition.reader.read(0, 1 << 20).data)
    assert not (tmp_path / "data" / "topics" / topic.id.hex()).exists()
    for _ in range(2):
        call = await start()
        restarted = call.broker.catalog.topic("flash")
        assert restarted is not None
        assert (restarted.id, restarted.is_volatile) == (topic.id, True)
        after = call.broker.partition("flash", 0)
        assert after is not None
        assert after.start_offset == after.end_offset
        assert after.start_offset % OFFSETS_PER_START == 0
        assert after.start_offset > partition.end_offset
        assert append(call, "flash", [b"d"]) == after.start_offset
        partition = after
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"a secret value" not in everything


async def test_a_volatile_partition_never_holds_much_more_than_its_retention_bytes(
    start: StartBroker,
) -> None:
    call = await start()
    await call.create("flash", headrace_volatile="true", retention_bytes="1000000")
    partition = call.broker.partition("flash", 0)
    assert partition is not None
    sizes = []
    for _ in range(300):
        append(call, "flash", [bytes(20_000)])
        sizes.append(partition.size_bytes)
    assert max(sizes) < 1_000_000 + 1_000_000 // 8 + 40_000
    assert min(sizes[100:]) > 900_000
    assert partition.start_offset > 200
    assert partition.end_offset == 300


async def test_a_volatile_topic_has_a_memory_limit_by_default(start: StartBroker) -> None:
    call = await start()
    topic = await call.create("flash", headrace_volatile="true")
    assert topic.configs["retention.bytes"] == str(64 << 20)
    assert await set_config(call, "flash", "retention.bytes", "-1") == 0
    changed = call.broker.catalog.topic("flash")
    assert changed is not None
    assert changed.configs["retention.bytes"] == str(64 << 20)


async def test_all_volatile_topics_together_stay_within_their_memory_limit(start: StartBroker) -> None:
    call = await start(volatile_bytes_max=5_000_000)
    await call.create("a", partitions=2, headrace_volatile="true", retention_bytes="1000000")
    request = m.CreateTopicsRequest
    topics = [
        request.CreatableTopic(
            name=name,
            num_partitions=2,
            replication_factor=1,
            configs=[
                request.CreatableTopicConfig(name="headrace.volatile", value="true"),
                request.CreatableTopicConfig(name="retention.bytes", value="1000000"),
            ],
        )
        for name in ("b", "c")
    ]
    response = await call(Api.CREATE_TOPICS, topics=topics, timeout_ms=1000)
    codes = {topic.name: topic.error_code for topic in response.topics}
    assert codes == {"b": 0, "c": ErrorCode.POLICY_VIOLATION}
    assert await set_config(call, "a", "retention.bytes", "2000000") == ErrorCode.POLICY_VIOLATION
    assert await set_config(call, "a", "retention.bytes", "1500000") == 0


@pytest.mark.parametrize(("volatile", "value"), [("true", "false"), ("false", "true")])
async def test_whether_a_topic_is_volatile_is_chosen_at_its_creation(
    start: StartBroker, volatile: str, value: str
) -> None:
    call = await start()
    await call.create("t", headrace_volatile=volatile)
    assert await set_config(call, "t", "headrace.volatile", value) == ErrorCode.INVALID_CONFIG
    assert await set_config(call, "t", "retention.ms", "1000") == 0


async def test_a_volatile_topic_cannot_be_compacted(start: StartBroker) -> None:
    call = await start()
    await call.create("t", headrace_volatile="true")
    assert await set_config(call, "t", "cleanup.policy", "compact") == ErrorCode.INVALID_CONFIG


async def test_a_volatile_topic_and_its_records_can_be_deleted(
    start: StartBroker,
) -> None:
    call = await start()
    await call.create("flash", partitions=2, headrace_volatile="true")
    append(call, "flash", [b"1", b"2", b"3"])
    request = m.DeleteRecordsRequest
    row = request.DeleteRecordsPartition(partition_index=0, offset=2)
    response = await call(
        Api.DELETE_RECORDS,
        topics=[request.DeleteRecordsTopic(name="flash", partitions=[row])],
        timeout_ms=1000,
    )
    assert response.topics[0].partitions[0].low_watermark == 2
    await call(Api.DELETE_TOPICS, 3, topic_names=["flash"], timeout_ms=1000)
    assert call.broker.partition("flash", 0) is None
    await call.create("flash", headrace_volatile="true")
    assert append(call, "flash", [b"new"]) == 0


async def test_a_volatile_topic_is_labelled_in_its_configs_and_in_the_metrics(start: StartBroker) -> None:
    call = await start()
    await call.create("flash", headrace_volatile="true")
    await call.create("kept")
    request = m.DescribeConfigsRequest
    response = await call(
        Api.DESCRIBE_CONFIGS,
        resources=[
            request.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in ("flash", "kept")
        ],
    )
    flash, kept = ({config.name: config.value for config in result.configs} for result in response.results)
    assert flash["headrace.volatile"] == "true"
    assert "headrace.volatile" not in kept
    page = await collect(call.broker, None)
    assert b'headrace_topic_volatile{topic="flash"} 1\n' in page
    assert b'headrace_topic_volatile{topic="kept"}' not in page
    expect_source_of_truth("kept", kept, "a view")
    with pytest.raises(NotASourceOfTruth, match="cannot be the source of a view"):
        expect_source_of_truth("flash", flash, "a view")
