"""Topics over the broker's starts, with real files."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.broker.new_topic import Growth

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]


async def test_topics_and_their_configuration_survive_a_restart(start: Starting) -> None:
    ask = await start()
    before = await ask.create("orders", 2, retention_ms="5")
    await ask.broker.catalog.grow([Growth("orders", 3)])
    ask = await start()
    after = ask.broker.catalog.topic("orders")
    assert after is not None
    assert (after.id, after.partitions, dict(after.configs)) == (before.id, 3, {"retention.ms": "5"})
    partition = ask.broker.partition("orders", 2)
    assert partition is not None
    assert partition.log.config.retention_ms == 5


async def test_a_topic_that_a_crash_left_without_directories_gets_them_at_the_next_start(
    start: Starting, tmp_path: Path
) -> None:
    ask = await start()
    topic = await ask.create("orders", 2)
    await ask.broker.stop()
    shutil.rmtree(tmp_path / "data" / "topics" / topic.id.hex())
    ask = await start()
    await ask.append("orders", 1, index=1)
    partition = ask.broker.partition("orders", 1)
    assert partition is not None
    assert partition.end_offset == 1


async def test_directories_that_a_crash_left_behind_are_gone_after_the_next_start(
    start: Starting, tmp_path: Path
) -> None:
    ask = await start()
    kept = await ask.create("kept")
    left = tmp_path / "data" / "topics" / ("ab" * 16) / "0"
    left.mkdir(parents=True)
    (left / "00000000000000000000.log").write_bytes(b"of a deleted topic")
    await start()
    assert [path.name for path in (tmp_path / "data" / "topics").iterdir()] == [kept.id.hex()]


async def test_a_topic_created_again_does_not_have_its_old_records(start: Starting) -> None:
    ask = await start()
    first = await ask.create("orders")
    await ask.append("orders", 1, 2, 3)
    await ask.broker.catalog.delete([first.id])
    await ask.create("orders")
    for asking in (ask, await start()):
        partition = asking.broker.partition("orders", 0)
        assert partition is not None
        assert (partition.start_offset, partition.end_offset) == (0, 0)
