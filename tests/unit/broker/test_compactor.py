"""Compaction as the broker runs it: beside clients, ended by a stop or by a topic's deletion, visible to clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from faults.disk.faulty_files import FaultyFiles
from headrace.broker.broker import Broker
from headrace.broker.metrics.collector import collect
from headrace.broker.settings import BrokerSettings
from headrace.broker.storage.partition import Partition
from headrace.records import build_batch
from headrace.testing.clock import DrivenClock
from headrace.wire import Api
from headrace.wire import messages as m

from .broker_calls import BrokerCalls
from .test_metrics import read

TOMBSTONES = "headrace.tombstones.removed.below"


async def create_compacted(call: BrokerCalls, name: str, **configs: str) -> Partition:
    await call.create(
        name,
        cleanup_policy="compact",
        internal_segment_bytes="400",
        min_cleanable_dirty_ratio="0",
        **configs,
    )
    partition = call.broker.partition(name, 0)
    assert partition is not None
    return partition


async def append_records(
    call: BrokerCalls, partition: Partition, *records: tuple[bytes, bytes | None]
) -> None:
    """Append one batch per record, and return when all are durable."""
    now_ms = call.broker.clock.now_ms()
    for key, value in records:
        batch = build_batch([(key, value, ())], timestamp_ms=now_ms)
        accepted = partition.append(batch, now_ms, now_ms)
        if accepted.durable is not None:
            await accepted.durable


async def removed_below(call: BrokerCalls, name: str) -> str | None:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=[TOMBSTONES]
    )
    response = await call(Api.DESCRIBE_CONFIGS, resources=[resource])
    values: list[Any] = [config for config in response.results[0].configs if config.name == TOMBSTONES]
    assert all(config.read_only for config in values)
    return values[0].value if values else None


async def test_a_compacted_topic_shrinks_and_other_topics_do_not(call: BrokerCalls) -> None:
    compacted = await create_compacted(call, "compacted")
    await call.create("plain", internal_segment_bytes="400")
    plain = call.broker.partition("plain", 0)
    assert plain is not None
    updates = [(b"key", b"%050d" % number) for number in range(40)]
    for partition in (compacted, plain):
        await append_records(call, partition, *updates)
    size = plain.size_bytes
    await call.broker.compactor.compact()
    assert plain.size_bytes == size
    assert compacted.size_bytes < size / 5
    assert (compacted.start_offset, compacted.end_offset) == (0, 40)


@pytest.fixture
def clock() -> DrivenClock:
    return DrivenClock()


@pytest.fixture
async def broker_with_clock(tmp_path: Path, clock: DrivenClock) -> AsyncIterator[BrokerCalls]:
    """A broker whose clock stops unless a test advances it."""
    broker = Broker(BrokerSettings(data_dir=tmp_path / "timed"), clock=clock)
    await broker.start()
    yield BrokerCalls(broker)
    await broker.stop()


async def test_only_a_reader_below_the_removed_tombstones_must_start_again(
    broker_with_clock: BrokerCalls, clock: DrivenClock
) -> None:
    call = broker_with_clock
    partition = await create_compacted(call, "orders", delete_retention_ms="1000")
    await append_records(
        call, partition, (b"a", b"1"), (b"a", None), *[(b"b", b"%050d" % n) for n in range(20)]
    )
    await call.broker.compactor.compact()
    assert await removed_below(call, "orders") == "0:0"
    clock.advance(0.9)
    await call.broker.compactor.compact()
    assert await removed_below(call, "orders") == "0:0"
    clock.advance(0.2)
    await call.broker.compactor.compact()
    # A reader that resumes at offset 1 missed the deletion at offset 1; a reader that resumes at 2 did not.
    assert await removed_below(call, "orders") == "0:2"
    assert partition.tombstone_horizon == 2
    await call.create("plain")
    assert await removed_below(call, "plain") is None


async def test_a_jump_of_the_clock_does_not_expire_tombstones(
    broker_with_clock: BrokerCalls, clock: DrivenClock
) -> None:
    partition = await create_compacted(broker_with_clock, "orders", delete_retention_ms="1000")
    await append_records(
        broker_with_clock, partition, (b"a", b"1"), (b"a", None), *[(b"b", b"%050d" % n) for n in range(20)]
    )
    await broker_with_clock.broker.compactor.compact()
    clock.jump_wall(10 * 365 * 24 * 3600 * 1000)
    await append_records(broker_with_clock, partition, *[(b"b", b"%050d" % n) for n in range(20)])
    await broker_with_clock.broker.compactor.compact()
    assert await removed_below(broker_with_clock, "orders") == "0:0"


async def test_a_topic_can_be_deleted_and_the_broker_stopped_during_compaction(call: BrokerCalls) -> None:
    for name in ("gone", "kept"):
        partition = await create_compacted(call, name)
        await append_records(call, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    compacting = asyncio.create_task(call.broker.compactor.compact())
    deleted_partition = call.broker.partition("gone", 0)
    assert deleted_partition is not None
    while deleted_partition.log.compacting is None and not compacting.done():
        await asyncio.sleep(0)
    response = await call(
        Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="gone", topic_id=bytes(16))]
    )
    assert response.responses[0].error_code == 0
    await call.broker.compactor.stop()
    await compacting
    other_partition = call.broker.partition("kept", 0)
    assert other_partition is not None
    assert other_partition.log.compacting is None


async def test_a_damaged_batch_is_logged_once_and_its_partition_is_skipped(
    call: BrokerCalls, caplog: Any
) -> None:
    partition = await create_compacted(call, "orders")
    await append_records(call, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    path = partition.log.segments[0].path
    with path.open("r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff")
    await call.broker.compactor.compact()
    await call.broker.compactor.compact()
    messages = [record.message for record in caplog.records if "not compacted" in record.message]
    assert messages == ["orders-0 has a damaged batch and is not compacted until the next start"]
    metrics = await compaction_metrics(call)
    assert metrics['_failures_total{reason="damage"}'] == 1
    assert metrics["manager_uncleanable_partitions_count"] == 1
    assert partition.end_offset == 40


async def test_a_marker_is_removed_with_the_last_record_of_its_transaction(
    broker_with_clock: BrokerCalls, clock: DrivenClock
) -> None:
    partition = await create_compacted(broker_with_clock, "orders", delete_retention_ms="1000")
    now_ms = clock.now_ms()
    batch = build_batch(
        [(b"a", b"aborted", ())],
        timestamp_ms=now_ms,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    partition.append(batch, now_ms, now_ms)
    partition.append_marker(7, 1, committed=False, coordinator_epoch=0, now_ms=now_ms, trusted_ms=now_ms)
    batch = build_batch(
        [(b"a", b"1", ())],
        timestamp_ms=now_ms,
        producer_id=7,
        producer_epoch=1,
        base_sequence=0,
        transactional=True,
    )
    partition.append(batch, now_ms, now_ms)
    partition.append_marker(7, 2, committed=True, coordinator_epoch=0, now_ms=now_ms, trusted_ms=now_ms)
    assert partition.log.transactions.aborted_count == 1
    for _ in range(3):
        await append_records(broker_with_clock, partition, *[(b"b", b"%050d" % n) for n in range(20)])
        await broker_with_clock.broker.compactor.compact()
        clock.advance(2)
    assert partition.log.transactions.aborted_count == 0
    assert len(list(partition.log.directory.glob("*.state"))) >= 1
    assert partition.reader.read(0, 1 << 20).next_offset > 4


async def compaction_metrics(call: BrokerCalls) -> dict[str, float]:
    """The metrics of compaction, by their names without the common prefix."""
    samples = read(await collect(call.broker, None))
    return {
        name.partition("logcleaner")[2] or name.removeprefix("headrace_compaction"): value
        for name, value in samples.items()
        if "_logcleaner" in name or "_compaction_" in name
    }


async def test_the_metrics_show_the_progress_of_compaction(
    broker_with_clock: BrokerCalls, clock: DrivenClock
) -> None:
    partition = await create_compacted(broker_with_clock, "orders")
    metrics = await compaction_metrics(broker_with_clock)
    assert {name: value for name, value in metrics.items() if value} == {}
    await append_records(broker_with_clock, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    sealed = sum(segment.size for segment in partition.log.segments[:-1])
    records = partition.log.segments[-1].base_offset
    active = partition.log.segments[-1].size
    clock.advance(3)
    assert (await compaction_metrics(broker_with_clock))["manager_time_since_last_run_ms"] == 3000
    await broker_with_clock.broker.compactor.compact()
    metrics = await compaction_metrics(broker_with_clock)
    remaining_bytes = partition.size_bytes - active
    assert metrics["_runs_total"] == 1
    assert metrics["_removed_records_total"] == records - 1
    # All records were new, so compaction read them twice: for their keys, and to copy them.
    assert metrics["_read_bytes_total"] == 2 * sealed
    assert metrics["_written_bytes_total"] == remaining_bytes
    assert metrics["_cleaner_recopy_percent"] == pytest.approx(100 * remaining_bytes / sealed)
    assert metrics["manager_time_since_last_run_ms"] == 0
    assert metrics["manager_uncleanable_partitions_count"] == 0
    assert metrics["_deadthreadcount"] == 0
    assert metrics["_max_clean_time_secs"] >= 0
    assert (metrics['_failures_total{reason="disk"}'], metrics['_failures_total{reason="damage"}']) == (0, 0)


async def test_a_failed_compaction_is_counted_and_retried_and_does_not_affect_clients() -> None:
    files = FaultyFiles(1)
    broker = Broker(BrokerSettings(data_dir=Path("/disk/data")), files=files)
    await broker.start()
    call = BrokerCalls(broker)
    partition = await create_compacted(call, "orders")
    await append_records(call, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    size = partition.size_bytes
    fault = files.fail("sync", path="*.log.compacted")
    await broker.compactor.compact()
    assert fault.hits == 1
    await append_records(call, partition, (b"key", b"while it has failed"))
    metrics = await compaction_metrics(call)
    assert (metrics["_runs_total"], metrics['_failures_total{reason="disk"}']) == (0, 1)
    assert metrics["manager_uncleanable_partitions_count"] == 0
    assert metrics["_read_bytes_total"] > 0
    assert metrics["_removed_records_total"] == 0
    await broker.compactor.compact()
    metrics = await compaction_metrics(call)
    assert (metrics["_runs_total"], metrics['_failures_total{reason="disk"}']) == (1, 1)
    assert partition.size_bytes < size / 5
    await broker.stop()


async def test_a_partition_whose_compaction_needs_a_restart_counts_as_skipped() -> None:
    files = FaultyFiles(1)
    settings = BrokerSettings(data_dir=Path("/disk/data"))
    broker = Broker(settings, files=files)
    await broker.start()
    call = BrokerCalls(broker)
    partition = await create_compacted(call, "orders")
    await append_records(call, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    files.fail("rename", path="*.log.compacted")
    await broker.compactor.compact()
    await broker.compactor.compact()
    metrics = await compaction_metrics(call)
    assert metrics['_failures_total{reason="disk"}'] == 1
    assert metrics["manager_uncleanable_partitions_count"] == 1
    assert partition.fenced is None
    await broker.stop()
    broker = Broker(settings, files=files.restart())
    await broker.start()
    call = BrokerCalls(broker)
    await broker.compactor.compact()
    assert (await compaction_metrics(call))["manager_uncleanable_partitions_count"] == 0
    await broker.stop()
