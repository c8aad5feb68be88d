"""Any moment of a backup, restored, is the log as it was after one of its steps: all partitions and groups alike."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headrace.broker.backup.choosing import choose
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.restoring import Restoring
from headrace.clock import SystemClock
from tests.backup.workload import GROUP, LateFiles, Model, Place, UnsyncedFiles, World, difference


async def restored(world: World, data: Path, number: int | None = None) -> World:
    """Another broker, over what is restored from a moment."""
    folder = BackupFolder(world.folder)
    manifest = choose(folder, to=None if number is None else str(number))
    await asyncio.to_thread(
        Restoring(folder, data, manifest, {}, clock=SystemClock(), files=UnsyncedFiles()).run
    )
    other = World(data.parent / f"{data.name}-world", 0)
    other.settings = {}
    await other.start(data)
    return other


@pytest.mark.parametrize("durability", ["synced", "os"])
@pytest.mark.parametrize("seed", range(3))
async def test_a_moment_is_the_log_after_one_of_its_steps(tmp_path: Path, seed: int, durability: str) -> None:
    world = World(tmp_path, seed, durability=durability)
    world.files = LateFiles(seed)
    await world.start()
    await world.prepare()
    moments: dict[int, tuple[int, int]] = {}
    for _ in range(8):
        for _ in range(world.random.randrange(12)):
            await world.step()
        first = len(world.history) - 1
        taking = asyncio.create_task(world.round())
        while not taking.done():
            await world.step()
            await asyncio.sleep(0)
        assert await taking
        # A step that was under way when it was taken may be in it already.
        newest = choose(BackupFolder(world.folder)).sequence
        moments[newest] = (first, len(world.history) - 1)
        if world.random.random() < 0.25:
            await world.stop()
            await world.start()
    await world.stop()
    chosen = random.Random(seed).sample(sorted(moments), 3)
    for number in chosen:
        first, last = moments[number]
        other = await restored(world, tmp_path / f"restored-{number}", number)
        try:
            found = [difference(other.ask.broker, model) for model in world.history[first : last + 1]]
            assert None in found, f"moment {number} is none of steps {first} to {last}: {found[0]}"
            await goes_on(other, world, world.history[first + found.index(None)])
        finally:
            await other.stop()


async def goes_on(other: World, world: World, model: Model) -> None:
    """Producers and transactions of the moment are known, and new ones have ids that nobody had."""
    for place, producer in model.sequences.items():
        before = other.ask.broker.partition(*place)
        assert before is not None
        end = before.end_offset
        again = await other.send(place, (b"sent", b"again"), producer=producer)
        assert again < end == before.end_offset, "what was sent before the moment is known"
        await other.send(place, (b"key-0", b"next"), producer=(*producer[:2], producer[2] + 1))
    fresh = await other._init(None)
    assert fresh[0] > max(world.idempotent[0], world.transactional[0])
    taken_over = await other._init("shop")
    assert all(not partition.open_transactions() for _, _, partition in other.ask.broker.partitions.all())
    assert taken_over[0] == world.transactional[0]


class Beside(World):
    """A group's commit is answered, and only then does what was held up reach the disk."""

    async def _commit(self, place: Place, offset: int) -> None:
        await super()._commit(place, offset)
        assert isinstance(self.files, LateFiles)
        self.files.release()
        partition = self.ask.broker.partition(*place)
        assert partition is not None
        while not partition.log.is_synced:
            await asyncio.sleep(0.001)


async def test_the_model_has_the_offset_that_was_committed_also_where_a_marker_moves_the_end(
    tmp_path: Path,
) -> None:
    world = Beside(tmp_path, 1)
    world.files = files = LateFiles(1)
    await world.start()
    await world.prepare()
    place = ("events", 0)
    world._place = lambda: place  # type: ignore[method-assign]
    await world.in_transaction()
    files.hold()
    world.random = random.Random(3)
    await world.end_transaction()
    partition = world.ask.broker.partition(*place)
    assert partition is not None
    assert partition.high_watermark < partition.end_offset, "the marker is written and not synced"
    await world.commit_group()
    assert partition.high_watermark == partition.end_offset
    committed = world.ask.broker.groups.fetch_all(GROUP)["events"][0].offset
    assert world.model.groups == {place: committed}
    assert await world.round()
    await world.stop()
    other = await restored(world, tmp_path / "restored")
    assert difference(other.ask.broker, world.model) is None
    await other.stop()
