"""Compaction as the broker runs it: beside clients, ended by a stop or by a topic's deletion, told over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.metrics import collect
from headrace.broker.partition import Partition
from headrace.broker.settings import BrokerSettings
from headrace.records import build_batch
from headrace.testing.faulty_clock import DrivenClock
from headrace.testing.faulty_files import FaultyFiles
from headrace.wire import Api
from headrace.wire import messages as m

from .desk import Asking
from .test_metrics import read

TOMBSTONES = "headrace.tombstones.removed.below"


async def make(ask: Asking, name: str, **configs: str) -> Partition:
    await ask.create(
        name,
        cleanup_policy="compact",
        internal_segment_bytes="400",
        min_cleanable_dirty_ratio="0",
        **configs,
    )
    partition = ask.broker.partition(name, 0)
    assert partition is not None
    return partition


async def put(ask: Asking, partition: Partition, *records: tuple[bytes, bytes | None]) -> None:
    """One batch for each record, all durable when this returns."""
    now_ms = ask.broker.clock.now_ms()
    for key, value in records:
        batch = build_batch([(key, value, ())], timestamp_ms=now_ms)
        accepted = partition.append(batch, now_ms, now_ms)
        if accepted.durable is not None:
            await accepted.durable


async def removed_below(ask: Asking, name: str) -> str | None:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=[TOMBSTONES]
    )
    response = await ask(Api.DESCRIBE_CONFIGS, resources=[resource])
    values: list[Any] = [config for config in response.results[0].configs if config.name == TOMBSTONES]
    assert all(config.read_only for config in values)
    return values[0].value if values else None


async def test_a_compacted_topic_shrinks_and_one_that_is_not_stays(ask: Asking) -> None:
    compacted = await make(ask, "compacted")
    await ask.create("plain", internal_segment_bytes="400")
    plain = ask.broker.partition("plain", 0)
    assert plain is not None
    updates = [(b"key", b"%050d" % number) for number in range(40)]
    for partition in (compacted, plain):
        await put(ask, partition, *updates)
    size = plain.size_bytes
    await ask.broker.compactor.compact()
    assert plain.size_bytes == size
    assert compacted.size_bytes < size / 5
    assert (compacted.start_offset, compacted.end_offset) == (0, 40)


@pytest.fixture
def clock() -> DrivenClock:
    return DrivenClock()


@pytest.fixture
async def timed(tmp_path: Path, clock: DrivenClock) -> AsyncIterator[Asking]:
    """A broker whose time stands still unless it is moved."""
    broker = Broker(BrokerSettings(data_dir=tmp_path / "timed"), clock=clock)
    await broker.start()
    yield Asking(broker)
    await broker.stop()


async def test_a_reader_below_the_removed_deletions_is_told_and_one_above_is_not(
    timed: Asking, clock: DrivenClock
) -> None:
    ask = timed
    partition = await make(ask, "orders", delete_retention_ms="1000")
    await put(ask, partition, (b"a", b"1"), (b"a", None), *[(b"b", b"%050d" % n) for n in range(20)])
    await ask.broker.compactor.compact()
    assert await removed_below(ask, "orders") == "0:0"
    clock.advance(0.9)
    await ask.broker.compactor.compact()
    assert await removed_below(ask, "orders") == "0:0"
    clock.advance(0.2)
    await ask.broker.compactor.compact()
    # One who had read offset 0 and would go on at 1 has missed the deletion at 1; one who goes on at 2 has not.
    assert await removed_below(ask, "orders") == "0:2"
    assert partition.tombstone_horizon == 2
    await ask.create("plain")
    assert await removed_below(ask, "plain") is None


async def test_a_clock_that_jumps_makes_no_deletion_expire(timed: Asking, clock: DrivenClock) -> None:
    partition = await make(timed, "orders", delete_retention_ms="1000")
    await put(timed, partition, (b"a", b"1"), (b"a", None), *[(b"b", b"%050d" % n) for n in range(20)])
    await timed.broker.compactor.compact()
    clock.jump_wall(10 * 365 * 24 * 3600 * 1000)
    await put(timed, partition, *[(b"b", b"%050d" % n) for n in range(20)])
    await timed.broker.compactor.compact()
    assert await removed_below(timed, "orders") == "0:0"


async def test_a_topic_can_be_deleted_and_the_broker_stopped_during_compaction(ask: Asking) -> None:
    for name in ("gone", "kept"):
        partition = await make(ask, name)
        await put(ask, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    compacting = asyncio.create_task(ask.broker.compactor.compact())
    gone = ask.broker.partition("gone", 0)
    assert gone is not None
    while gone.log.compacting is None and not compacting.done():
        await asyncio.sleep(0)
    response = await ask(
        Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="gone", topic_id=bytes(16))]
    )
    assert response.responses[0].error_code == 0
    await ask.broker.compactor.stop()
    await compacting
    kept = ask.broker.partition("kept", 0)
    assert kept is not None
    assert kept.log.compacting is None


async def test_a_damaged_batch_is_said_once_and_the_partition_left_alone(ask: Asking, caplog: Any) -> None:
    partition = await make(ask, "orders")
    await put(ask, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    path = partition.log.segments[0].path
    with path.open("r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff")
    await ask.broker.compactor.compact()
    await ask.broker.compactor.compact()
    said = [record.message for record in caplog.records if "not compacted" in record.message]
    assert said == ["orders-0 is not compacted before the next start: a batch is damaged"]
    found = await counted(ask)
    assert found['_failures_total{reason="damage"}'] == 1
    assert found["manager_uncleanable_partitions_count"] == 1
    assert partition.end_offset == 40


async def test_a_marker_goes_with_the_last_trace_of_its_transaction(
    timed: Asking, clock: DrivenClock
) -> None:
    partition = await make(timed, "orders", delete_retention_ms="1000")
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
    partition.mark(7, 1, committed=False, coordinator_epoch=0, now_ms=now_ms, trusted_ms=now_ms)
    batch = build_batch(
        [(b"a", b"1", ())],
        timestamp_ms=now_ms,
        producer_id=7,
        producer_epoch=1,
        base_sequence=0,
        transactional=True,
    )
    partition.append(batch, now_ms, now_ms)
    partition.mark(7, 2, committed=True, coordinator_epoch=0, now_ms=now_ms, trusted_ms=now_ms)
    assert partition.log.transactions.aborted_count == 1
    for _ in range(3):
        await put(timed, partition, *[(b"b", b"%050d" % n) for n in range(20)])
        await timed.broker.compactor.compact()
        clock.advance(2)
    assert partition.log.transactions.aborted_count == 0
    assert len(list(partition.log.directory.glob("*.state"))) >= 1
    assert partition.reader.read(0, 1 << 20).next_offset > 4


async def counted(ask: Asking) -> dict[str, float]:
    """What the page of metrics says of compaction, by what is behind the common part of the names."""
    samples = read(await collect(ask.broker, None))
    return {
        name.partition("logcleaner")[2] or name.removeprefix("headrace_compaction"): value
        for name, value in samples.items()
        if "_logcleaner" in name or "_compaction_" in name
    }


async def test_the_metrics_tell_what_compaction_has_done(timed: Asking, clock: DrivenClock) -> None:
    partition = await make(timed, "orders")
    found = await counted(timed)
    assert {name: value for name, value in found.items() if value} == {}
    await put(timed, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    sealed = sum(segment.size for segment in partition.log.segments[:-1])
    records = partition.log.segments[-1].base_offset
    active = partition.log.segments[-1].size
    clock.advance(3)
    assert (await counted(timed))["manager_time_since_last_run_ms"] == 3000
    await timed.broker.compactor.compact()
    found = await counted(timed)
    left = partition.size_bytes - active
    assert found["_runs_total"] == 1
    assert found["_removed_records_total"] == records - 1
    # All of it was new, so it was read for its keys and for its records.
    assert found["_read_bytes_total"] == 2 * sealed
    assert found["_written_bytes_total"] == left
    assert found["_cleaner_recopy_percent"] == pytest.approx(100 * left / sealed)
    assert found["manager_time_since_last_run_ms"] == 0
    assert found["manager_uncleanable_partitions_count"] == 0
    assert found["_deadthreadcount"] == 0
    assert found["_max_clean_time_secs"] >= 0
    assert (found['_failures_total{reason="disk"}'], found['_failures_total{reason="damage"}']) == (0, 0)


async def test_a_compaction_that_fails_is_counted_and_repeated_and_clients_do_not_notice() -> None:
    files = FaultyFiles(1)
    broker = Broker(BrokerSettings(data_dir=Path("/disk/data")), files=files)
    await broker.start()
    ask = Asking(broker)
    partition = await make(ask, "orders")
    await put(ask, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    size = partition.size_bytes
    fault = files.fail("sync", path="*.log.compacted")
    await broker.compactor.compact()
    assert fault.hits == 1
    await put(ask, partition, (b"key", b"while it has failed"))
    found = await counted(ask)
    assert (found["_runs_total"], found['_failures_total{reason="disk"}']) == (0, 1)
    assert found["manager_uncleanable_partitions_count"] == 0
    assert found["_read_bytes_total"] > 0
    assert found["_removed_records_total"] == 0
    await broker.compactor.compact()
    found = await counted(ask)
    assert (found["_runs_total"], found['_failures_total{reason="disk"}']) == (1, 1)
    assert partition.size_bytes < size / 5
    await broker.stop()


async def test_a_compaction_that_only_a_start_can_finish_is_counted_as_left_alone() -> None:
    files = FaultyFiles(1)
    settings = BrokerSettings(data_dir=Path("/disk/data"))
    broker = Broker(settings, files=files)
    await broker.start()
    ask = Asking(broker)
    partition = await make(ask, "orders")
    await put(ask, partition, *[(b"key", b"%050d" % number) for number in range(40)])
    files.fail("rename", path="*.log.compacted")
    await broker.compactor.compact()
    await broker.compactor.compact()
    found = await counted(ask)
    assert found['_failures_total{reason="disk"}'] == 1
    assert found["manager_uncleanable_partitions_count"] == 1
    assert partition.fenced is None
    await broker.stop()
    broker = Broker(settings, files=files.restart())
    await broker.start()
    ask = Asking(broker)
    await broker.compactor.compact()
    assert (await counted(ask))["manager_uncleanable_partitions_count"] == 0
    await broker.stop()
