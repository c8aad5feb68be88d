"""A process is killed at every operation. The next process continues with the page cache, and then the power fails:
every record that it served or acknowledged must survive.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.disk.faulty_files import Crash, FaultyFiles
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from tests.unit.log.conftest import NOW_MS, append, values_from

DIRECTORY = Path("/disk/partition")
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
OUTCOMES = 12


def open_log(files: FaultyFiles, *, leader_epoch: int = 0, config: LogConfig = CONFIG) -> PartitionLog:
    return PartitionLog(files, DIRECTORY, config=config, leader_epoch=leader_epoch, now_ms=NOW_MS)


def new_disk(seed: int) -> FaultyFiles:
    files = FaultyFiles(seed)
    files.make_dir(DIRECTORY)
    files.sync_dir(DIRECTORY.parent)
    return files


def never_marked(files: FaultyFiles, count: int) -> PartitionLog:
    """A log whose synced mark does not record a sync yet, as in the first second of a busy partition."""
    log = open_log(files)
    for number in range(count):
        append(log, b"first-%d" % number)
    log.sync_now()
    return log


def filled(files: FaultyFiles, count: int) -> PartitionLog:
    log = never_marked(files, count)
    log.sync_mark()
    return log


def killed_at_every_operation(
    prepare: Callable[[FaultyFiles], PartitionLog | None],
    act: Callable[[FaultyFiles, PartitionLog | None], object],
) -> Iterator[FaultyFiles]:
    """Kill the process before and after each operation of ``act``; yield the disk that the next process opens."""
    for number in itertools.count(1):
        for when in ("before", "after"):
            files = new_disk(number)
            log = prepare(files)
            fault = files.crash_at(number, when=when)  # type: ignore[arg-type]
            with contextlib.suppress(Crash):
                act(files, log)
            if not fault.hits:
                assert number > 3
                return
            yield files.restart()


def check_after_power_loss(files: FaultyFiles) -> None:
    """Read all records, append one more, lose power: all of them must survive in every possible state of the disk."""
    log = open_log(files, leader_epoch=1)
    served = values_from(log)
    append(log, b"acknowledged")
    log.sync_now()
    served[log.end_offset - 1] = b"acknowledged"
    for _ in range(OUTCOMES):
        after = open_log(files.crash(), leader_epoch=2)
        assert after.report.damage == []
        found = values_from(after)
        assert {offset: value for offset, value in served.items() if offset >= after.start_offset} == {
            offset: found.get(offset) for offset in served if offset >= after.start_offset
        }


def test_records_survive_a_power_loss_after_a_first_start_killed_at_any_operation() -> None:
    for files in killed_at_every_operation(lambda files: None, lambda files, _: open_log(files)):
        check_after_power_loss(files)


def test_records_survive_a_power_loss_after_a_roll_killed_at_any_operation() -> None:
    def roll(files: FaultyFiles, log: PartitionLog | None) -> None:
        assert log is not None
        for number in range(6):
            append(log, b"second-%d" % number)
        log.sync_now()

    for files in killed_at_every_operation(lambda files: filled(files, 3), roll):
        check_after_power_loss(files)


def test_records_survive_a_power_loss_after_a_deletion_killed_at_any_operation() -> None:
    def delete(files: FaultyFiles, log: PartitionLog | None) -> None:
        assert log is not None
        log.delete_before(9)

    for files in killed_at_every_operation(lambda files: filled(files, 12), delete):
        check_after_power_loss(files)


def test_records_survive_a_power_loss_after_a_recovery_killed_at_any_operation() -> None:
    def torn(files: FaultyFiles) -> PartitionLog | None:
        log = filled(files, 3)
        for number in range(8):
            append(log, b"unsynced-%d" % number)
        return None

    for files in killed_at_every_operation(torn, lambda files, _: open_log(files)):
        check_after_power_loss(files)


@pytest.mark.parametrize("seed", range(30))
def test_lost_batches_of_producers_are_not_remembered_after_a_power_loss(
    seed: int,
) -> None:
    files = new_disk(seed)
    log = filled(files, 2)
    # A roll syncs the state of producers before the batches that the state covers are synced.
    for sequence in range(12):
        append(log, b"lost-%d" % sequence, producer=(7, 0, sequence))
    files = files.crash()
    log = open_log(files, leader_epoch=1, config=LogConfig())
    kept = log.end_offset - 2
    for sequence in range(kept, 12):
        append(log, b"other", producer=(8, 0, sequence - kept))
    log.sync_now()
    log = open_log(files.crash(), leader_epoch=2)
    assert append(log, b"again", producer=(8, 0, 12 - kept)).duplicate is False
    known = {producer.producer_id: producer for producer in log.producers}
    assert (7 in known) == (kept > 0)
    if kept:
        assert known[7].batches[-1].last_sequence == kept - 1


@pytest.mark.parametrize("seed", range(30))
def test_the_index_of_a_lost_log_is_not_used_for_a_new_log_of_the_same_size(seed: int) -> None:
    files = new_disk(seed)
    log = filled(files, 1)
    for number in range(6):
        append(log, b"long" * 10 if number % 2 else b"short", timestamp_ms=NOW_MS + 1000)
    files = files.crash()
    log = open_log(files, leader_epoch=1)
    # The new log has the same number of batches and bytes in another order, and the disk is too full for indexes.
    files.fail("create", path="*.index.new", times=None)
    while log.end_offset < 7:
        append(log, b"short" if log.end_offset % 2 == 0 else b"long" * 10)
    log.sync_now()
    files.heal()
    reopened = open_log(files.crash(), leader_epoch=2)
    assert reopened.report.damage == []
    assert len(values_from(reopened)) == reopened.end_offset == 7
    for segment in reopened.segments[:-1]:
        if segment.base_offset >= 1:
            segment.ensure_columns(100)
            offsets, positions = list(segment.index.offsets), list(segment.index.positions)
            segment.rebuild_index(100, segment.size, segment.end_offset)
            assert (offsets, positions) == (list(segment.index.offsets), list(segment.index.positions))


def test_a_kill_after_an_unsynced_deletion_loses_no_record() -> None:
    files = new_disk(1)
    log = PartitionLog(files, DIRECTORY, config=CONFIG, waits_for_sync=False, now_ms=NOW_MS)
    append(log, b"deleted")
    log.delete_before(1)
    log.roll(NOW_MS)
    append(log, b"acknowledged")
    reopened = PartitionLog(files.restart(), DIRECTORY, config=CONFIG, waits_for_sync=False, now_ms=NOW_MS)
    assert values_from(reopened) == {1: b"acknowledged"}


def check_producers_are_known(files: FaultyFiles, sequences: int) -> None:
    log = open_log(files, leader_epoch=5)
    for sequence in range(sequences - 3, sequences):
        reopened = append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
        assert (reopened.duplicate, reopened.base_offset) == (True, sequence)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("to_the_end", [True, False])
def test_producers_whose_batches_were_deleted_are_known_after_a_power_loss(
    seed: int, to_the_end: bool
) -> None:
    files = new_disk(seed)
    log = open_log(files)
    for sequence in range(12):
        append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
        if sequence % 4 == seed % 4:
            log.sync_now()
    log.sync_now()
    if to_the_end:
        # Retention does this when even the newest segment is too old.
        log.roll(NOW_MS)
    log.delete_before(12)
    check_producers_are_known(files.crash(), 12)


def test_producers_are_known_after_a_deletion_killed_at_any_operation() -> None:
    def fill(files: FaultyFiles) -> PartitionLog:
        log = open_log(files)
        for sequence in range(12):
            append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
        log.sync_now()
        log.sync_mark()
        return log

    def delete(files: FaultyFiles, log: PartitionLog | None) -> None:
        assert log is not None
        log.roll(NOW_MS)
        log.delete_before(12)

    for files in killed_at_every_operation(fill, delete):
        check_producers_are_known(files, 12)


@pytest.mark.parametrize("seed", range(20))
def test_a_state_snapshot_below_the_synced_offset_is_retained(seed: int) -> None:
    files = new_disk(seed)
    log = open_log(files)
    for sequence in range(8):
        append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
    log.roll(NOW_MS)
    append(log, b"behind them")
    log.sync_now()
    log.delete_before(8)
    # Many rolls without a sync: their states cover batches that the power loss may remove.
    for number in range(20):
        append(log, b"unsynced-%d" % number)
    check_producers_are_known(files.crash(), 8)
