"""Every restore point restores the log after one step of the workload, with all partitions and groups."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.restore import Restore
from headrace.broker.backup.restore_points import choose
from headrace.clock import SystemClock
from tests.backup.workload import (
    GROUP,
    DelayedSyncFiles,
    Model,
    TopicPartition,
    UnsyncedFiles,
    World,
    difference,
)


async def restored(world: World, data: Path, number: int | None = None) -> World:
    """Restore a data directory from a restore point, and start another broker on it."""
    folder = BackupFolder(world.folder)
    manifest = choose(folder, to=None if number is None else str(number))
    await asyncio.to_thread(
        Restore(folder, data, manifest, {}, clock=SystemClock(), files=UnsyncedFiles()).run
    )
    other = World(data.parent / f"{data.name}-world", 0)
    other.settings = {}
    await other.start(data)
    return other


@pytest.mark.parametrize("durability", ["synced", "os"])
@pytest.mark.parametrize("seed", range(3))
async def test_a_restore_point_equals_the_log_after_one_of_the_workload_steps(
    tmp_path: Path, seed: int, durability: str
) -> None:
    world = World(tmp_path, seed, durability=durability)
    world.files = DelayedSyncFiles(seed)
    await world.start()
    await world.prepare()
    points: dict[int, tuple[int, int]] = {}
    for _ in range(8):
        for _ in range(world.random.randrange(12)):
            await world.step()
        first = len(world.history) - 1
        taking = asyncio.create_task(world.round())
        while not taking.done():
            await world.step()
            await asyncio.sleep(0)
        assert await taking
        # The restore point may include the step that ran while it was planned.
        newest = choose(BackupFolder(world.folder)).sequence
        points[newest] = (first, len(world.history) - 1)
        if world.random.random() < 0.25:
            await world.stop()
            await world.start()
    await world.stop()
    chosen = random.Random(seed).sample(sorted(points), 3)
    for number in chosen:
        first, last = points[number]
        other = await restored(world, tmp_path / f"restored-{number}", number)
        try:
            differences = [difference(other.call.broker, model) for model in world.history[first : last + 1]]
            assert None in differences, (
                f"restore point {number} equals no step from {first} to {last}: {differences[0]}"
            )
            await expect_continuation(other, world, world.history[first + differences.index(None)])
        finally:
            await other.stop()


async def expect_continuation(other: World, world: World, model: Model) -> None:
    """Check that the restored broker knows the producers and transactions, and assigns unused ids to new producers."""
    for topic_partition, producer in model.sequences.items():
        before = other.call.broker.partition(*topic_partition)
        assert before is not None
        end = before.end_offset
        again = await other.send(topic_partition, (b"sent", b"again"), producer=producer)
        assert again < end == before.end_offset, (
            "a batch before the restore point was not recognised as a repeat"
        )
        await other.send(topic_partition, (b"key-0", b"next"), producer=(*producer[:2], producer[2] + 1))
    fresh = await other._init(None)
    assert fresh[0] > max(world.idempotent[0], world.transactional[0])
    taken_over = await other._init("shop")
    assert all(not partition.open_transactions() for _, _, partition in other.call.broker.partitions.all())
    assert taken_over[0] == world.transactional[0]


class DelayedSyncWorld(World):
    """Releases the held syncs only after the broker has responded to a group's commit."""

    async def _commit(self, topic_partition: TopicPartition, offset: int) -> None:
        await super()._commit(topic_partition, offset)
        assert isinstance(self.files, DelayedSyncFiles)
        self.files.release()
        partition = self.call.broker.partition(*topic_partition)
        assert partition is not None
        while not partition.log.is_synced:
            await asyncio.sleep(0.001)


async def test_the_model_records_the_committed_offset_even_if_a_marker_advances_the_end(
    tmp_path: Path,
) -> None:
    world = DelayedSyncWorld(tmp_path, 1)
    world.files = files = DelayedSyncFiles(1)
    await world.start()
    await world.prepare()
    topic_partition = ("events", 0)
    world._any_partition = lambda: topic_partition  # type: ignore[method-assign]
    await world.send_in_transaction()
    files.hold()
    world.random = random.Random(3)
    await world.end_transaction()
    partition = world.call.broker.partition(*topic_partition)
    assert partition is not None
    assert partition.high_watermark < partition.end_offset, "the marker is not written, or already synced"
    await world.commit_group()
    assert partition.high_watermark == partition.end_offset
    committed = world.call.broker.groups.fetch_all(GROUP)["events"][0].offset
    assert world.model.groups == {topic_partition: committed}
    assert await world.round()
    await world.stop()
    other = await restored(world, tmp_path / "restored")
    assert difference(other.call.broker, world.model) is None
    await other.stop()
