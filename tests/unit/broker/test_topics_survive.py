"""Topics survive restarts of the broker, with real files."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.broker.topics.new_topic import Growth

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]


async def test_topics_and_their_configuration_survive_a_restart(start: StartBroker) -> None:
    call = await start()
    before = await call.create("orders", 2, retention_ms="5")
    await call.broker.catalog.grow([Growth("orders", 3)])
    call = await start()
    after = call.broker.catalog.topic("orders")
    assert after is not None
    assert (after.id, after.partitions, dict(after.configs)) == (before.id, 3, {"retention.ms": "5"})
    partition = call.broker.partition("orders", 2)
    assert partition is not None
    assert partition.log.config.retention_ms == 5


async def test_a_topic_that_a_crash_left_without_directories_gets_them_at_the_next_start(
    start: StartBroker, tmp_path: Path
) -> None:
    call = await start()
    topic = await call.create("orders", 2)
    await call.broker.stop()
    shutil.rmtree(tmp_path / "data" / "topics" / topic.id.hex())
    call = await start()
    await call.append("orders", 1, index=1)
    partition = call.broker.partition("orders", 1)
    assert partition is not None
    assert partition.end_offset == 1


async def test_the_next_start_removes_directories_that_a_crash_left(
    start: StartBroker, tmp_path: Path
) -> None:
    call = await start()
    existing = await call.create("kept")
    leftover = tmp_path / "data" / "topics" / ("ab" * 16) / "0"
    leftover.mkdir(parents=True)
    (leftover / "00000000000000000000.log").write_bytes(b"of a deleted topic")
    await start()
    assert [path.name for path in (tmp_path / "data" / "topics").iterdir()] == [existing.id.hex()]


async def test_a_topic_created_again_does_not_have_its_old_records(start: StartBroker) -> None:
    call = await start()
    first = await call.create("orders")
    await call.append("orders", 1, 2, 3)
    await call.broker.catalog.delete([first.id])
    await call.create("orders")
    for broker_calls in (call, await start()):
        partition = broker_calls.broker.partition("orders", 0)
        assert partition is not None
        assert (partition.start_offset, partition.end_offset) == (0, 0)
