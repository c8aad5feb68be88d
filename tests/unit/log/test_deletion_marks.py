"""After a deletion, both slots of the synced mark (the file ``mark``) refer only to existing files."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from faults.disk.faulty_files import FaultyFiles
from headrace.log.committer import Committer
from headrace.log.partition import PartitionLog
from tests.unit.log.conftest import append, values_from
from tests.unit.log.test_power_loss import (
    DIRECTORY,
    filled,
    killed_at_every_operation,
    never_marked,
    new_disk,
    open_log,
)

MARK = DIRECTORY / "mark"
SLOTS = (0, 4096)
Fill = Callable[[FaultyFiles, int], PartitionLog]


def with_damaged_slot(files: FaultyFiles, slot: int) -> FaultyFiles:
    """A copy of the disk after a power loss, with one slot of the mark damaged."""
    files.sync_dir(DIRECTORY)
    after = files.crash()
    after.damage(MARK, slot + 20, bytes([after.content(MARK)[slot + 20] ^ 1]))
    return after


@pytest.mark.parametrize("fill", [filled, never_marked])
@pytest.mark.parametrize("slot", SLOTS)
def test_a_log_opens_without_loss_if_a_slot_is_damaged_after_a_deletion(fill: Fill, slot: int) -> None:
    files = new_disk(1)
    log = fill(files, 12)
    log.delete_before(9)
    assert log.segments[0].base_offset > 0, "no file was removed"
    after = open_log(with_damaged_slot(files, slot), leader_epoch=1)
    assert (after.start_offset, after.end_offset, after.report.damage) == (9, 12, [])
    assert sorted(values_from(after)) == [9, 10, 11]


@pytest.mark.parametrize("slot", SLOTS)
def test_no_offset_is_used_twice_when_a_slot_is_damaged_after_a_full_deletion(slot: int) -> None:
    files = new_disk(1)
    log = filled(files, 12)
    log.roll(0)
    log.delete_before(12)
    after = open_log(with_damaged_slot(files, slot), leader_epoch=1)
    assert (after.start_offset, after.end_offset, after.report.damage) == (12, 12, [])


@pytest.mark.parametrize("fill", [filled, never_marked])
@pytest.mark.parametrize("slot", SLOTS)
def test_after_a_deletion_killed_at_any_operation_the_log_opens_with_either_slot(
    fill: Fill, slot: int
) -> None:
    def delete(_: FaultyFiles, log: PartitionLog | None) -> None:
        assert log is not None
        log.delete_before(9)

    for files in killed_at_every_operation(lambda files: fill(files, 12), delete):
        files.damage(MARK, slot + 20, bytes([files.content(MARK)[slot + 20] ^ 1]))
        log = open_log(files, leader_epoch=1)
        assert (log.end_offset, log.report.damage) == (12, [])
        assert log.start_offset in (0, 9)
        assert set(values_from(log)) >= set(range(log.start_offset, 12))


@pytest.mark.parametrize("slot", SLOTS)
def test_a_start_completes_a_killed_deletion_in_both_slots(slot: int) -> None:
    def delete(_: FaultyFiles, log: PartitionLog | None) -> None:
        assert log is not None
        log.delete_before(9)

    for files in killed_at_every_operation(lambda files: never_marked(files, 12), delete):
        start = open_log(files, leader_epoch=1).start_offset
        after = open_log(with_damaged_slot(files, slot), leader_epoch=2)
        assert (after.end_offset, after.report.damage) == (12, [])
        assert after.start_offset == start
        assert set(values_from(after)) >= set(range(start, 12))


@pytest.mark.parametrize("slot", SLOTS)
def test_after_a_start_neither_slot_points_to_removed_unsynced_files(
    slot: int,
) -> None:
    files = new_disk(1)
    log = PartitionLog(files, DIRECTORY, waits_for_sync=False)
    append(log, b"deleted")
    log.delete_before(1)
    log.roll(0)
    append(log, b"acknowledged")
    files = files.restart()
    assert open_log(files, leader_epoch=1).segments[0].base_offset == 1
    after = open_log(with_damaged_slot(files, slot), leader_epoch=2)
    assert (after.report.damage, values_from(after)) == ([], {1: b"acknowledged"})


class SlowMark:
    """Blocks syncs of the mark until a test sets ``released``."""

    def __init__(self, files: FaultyFiles) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()
        files.watch = lambda operation, stage: (
            self._wait()
            if operation.path == MARK and operation.kind == "sync" and stage == "before"
            else None
        )

    def _wait(self) -> None:
        self.reached.set()
        assert self.released.wait(60)

    async def until_reached(self) -> None:
        async with asyncio.timeout(120):
            while not self.reached.is_set():
                await asyncio.sleep(0.001)


@pytest.fixture
async def committer() -> AsyncIterator[Committer]:
    committer = Committer()
    yield committer
    await committer.close()


async def test_a_deletion_that_waits_for_the_disk_does_not_delay_appends(committer: Committer) -> None:
    files = new_disk(1)
    log = filled(files, 12)
    slow = SlowMark(files)
    deletion = asyncio.create_task(committer.delete_before(log, 9))
    await slow.until_reached()
    # Meanwhile the event loop runs, the log accepts writes, and the records to delete can still be read.
    append(log, b"meanwhile")
    await committer.wait(log, 13)
    assert (log.start_offset, log.high_watermark, len(values_from(log))) == (0, 13, 13)
    assert not deletion.done()
    slow.released.set()
    assert await deletion == 9
    assert (log.start_offset, log.high_watermark) == (9, 13)
    assert not files.exists(DIRECTORY / f"{0:020d}.log")
    for _ in range(12):
        after = open_log(files.crash(), leader_epoch=1)
        assert (after.start_offset, after.end_offset, after.report.damage) == (9, 13, [])


@pytest.mark.parametrize("slot", SLOTS)
async def test_two_concurrent_deletions_do_not_revert_each_other(committer: Committer, slot: int) -> None:
    files = new_disk(1)
    log = filled(files, 12)
    slow = SlowMark(files)
    far = asyncio.create_task(committer.delete_before(log, 10))
    near = asyncio.create_task(committer.delete_before(log, 6))
    await slow.until_reached()
    slow.released.set()
    assert await far == 10
    assert await near in (6, 10)
    assert log.start_offset == 10
    after = open_log(with_damaged_slot(files, slot), leader_epoch=1)
    assert (after.start_offset, after.end_offset, after.report.damage) == (10, 12, [])


async def test_an_abandoned_deletion_completes_before_the_files_are_closed(
    committer: Committer,
) -> None:
    files = new_disk(1)
    log = filled(files, 12)
    slow = SlowMark(files)
    deletion = asyncio.create_task(committer.delete_before(log, 9))
    await slow.until_reached()
    deletion.cancel()
    settled = asyncio.create_task(committer.settle(log))
    await asyncio.sleep(0.01)
    assert not settled.done()
    slow.released.set()
    await settled
    assert log.start_offset == 9
    log.close()


async def test_a_deletion_up_to_a_new_segment_removes_no_file_that_a_slot_points_to(
    committer: Committer,
) -> None:
    files = new_disk(1)
    log = filled(files, 12)
    slow = SlowMark(files)
    deletion = asyncio.create_task(committer.delete_before(log, 12))
    await slow.until_reached()
    before = log.active
    log.roll(0)
    slow.released.set()
    assert await deletion == 12
    assert before in log.segments
    after = open_log(with_damaged_slot(files, SLOTS[0]), leader_epoch=1)
    assert (after.start_offset, after.end_offset, after.report.damage) == (12, 12, [])


async def test_a_deletion_whose_mark_cannot_be_written_does_not_change_the_start_offset(
    committer: Committer,
) -> None:
    files = new_disk(1)
    log = filled(files, 12)
    files.fail("sync", path="*/mark", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        await committer.delete_before(log, 9)
    assert (log.start_offset, log.deletions) == (0, 0)
    assert await committer.delete_before(log, 9) == 9
