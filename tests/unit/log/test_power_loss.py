"""A process is killed at every operation of something, the next one finds what the page cache shows, works on it, and
then the power goes: whatever the next one served or acknowledged must still be there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.conftest import NOW_MS, append, values_from

DIRECTORY = Path("/disk/partition")
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
OUTCOMES = 12


def opened(files: FaultyFiles, *, leader_epoch: int = 0, config: LogConfig = CONFIG) -> PartitionLog:
    return PartitionLog(files, DIRECTORY, config=config, leader_epoch=leader_epoch, now_ms=NOW_MS)


def new_disk(seed: int) -> FaultyFiles:
    files = FaultyFiles(seed)
    files.make_dir(DIRECTORY)
    files.sync_dir(DIRECTORY.parent)
    return files


def never_marked(files: FaultyFiles, count: int) -> PartitionLog:
    """Both slots say that nothing is synced yet, as in the first second of a busy partition."""
    log = opened(files)
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
    """The disk as the next process finds it, once for every operation of ``act``."""
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
    """Serve what is there, acknowledge one more, lose power: both must be there, however the disk comes out of it."""
    log = opened(files, leader_epoch=1)
    served = values_from(log)
    append(log, b"acknowledged")
    log.sync_now()
    served[log.end_offset - 1] = b"acknowledged"
    for _ in range(OUTCOMES):
        after = opened(files.crash(), leader_epoch=2)
        assert after.report.damage == []
        found = values_from(after)
        assert {offset: value for offset, value in served.items() if offset >= after.start_offset} == {
            offset: found.get(offset) for offset in served if offset >= after.start_offset
        }


def test_a_first_start_killed_anywhere_endangers_nothing_later() -> None:
    for files in killed_at_every_operation(lambda files: None, lambda files, _: opened(files)):
        check_after_power_loss(files)


def test_a_roll_killed_anywhere_endangers_nothing_later() -> None:
    def roll(files: FaultyFiles, log: PartitionLog | None) -> None:
        assert log is not None
        for number in range(6):
            append(log, b"second-%d" % number)
        log.sync_now()

    for files in killed_at_every_operation(lambda files: filled(files, 3), roll):
        check_after_power_loss(files)


def test_a_deletion_killed_anywhere_endangers_nothing_later() -> None:
    def delete(files: FaultyFiles, log: PartitionLog | None) -> None:
        assert log is not None
        log.delete_before(9)

    for files in killed_at_every_operation(lambda files: filled(files, 12), delete):
        check_after_power_loss(files)


def test_a_recovery_killed_anywhere_endangers_nothing_later() -> None:
    def torn(files: FaultyFiles) -> PartitionLog | None:
        log = filled(files, 3)
        for number in range(8):
            append(log, b"unsynced-%d" % number)
        return None

    for files in killed_at_every_operation(torn, lambda files, _: opened(files)):
        check_after_power_loss(files)


@pytest.mark.parametrize("seed", range(30))
def test_what_producers_sent_before_a_power_loss_is_not_remembered_from_a_log_that_was_lost(
    seed: int,
) -> None:
    files = new_disk(seed)
    log = filled(files, 2)
    # Rolls write the state of producers durably, ahead of the batches that it tells of.
    for sequence in range(12):
        append(log, b"lost-%d" % sequence, producer=(7, 0, sequence))
    files = files.crash()
    log = opened(files, leader_epoch=1, config=LogConfig())
    kept = log.end_offset - 2
    for sequence in range(kept, 12):
        append(log, b"other", producer=(8, 0, sequence - kept))
    log.sync_now()
    log = opened(files.crash(), leader_epoch=2)
    assert append(log, b"again", producer=(8, 0, 12 - kept)).duplicate is False
    known = {producer.producer_id: producer for producer in log.producers}
    assert (7 in known) == (kept > 0)
    if kept:
        assert known[7].batches[-1].last_sequence == kept - 1


@pytest.mark.parametrize("seed", range(30))
def test_the_index_of_a_log_that_was_lost_is_not_taken_for_that_of_another(seed: int) -> None:
    files = new_disk(seed)
    log = filled(files, 1)
    for number in range(6):
        append(log, b"long" * 10 if number % 2 else b"short", timestamp_ms=NOW_MS + 1000)
    files = files.crash()
    log = opened(files, leader_epoch=1)
    # The same numbers of batches and bytes, in another order; and the disk is too full for indexes.
    files.fail("create", path="*.index.new", times=None)
    while log.end_offset < 7:
        append(log, b"short" if log.end_offset % 2 == 0 else b"long" * 10)
    log.sync_now()
    files.heal()
    again = opened(files.crash(), leader_epoch=2)
    assert again.report.damage == []
    assert len(values_from(again)) == again.end_offset == 7
    for segment in again.segments[:-1]:
        if segment.base_offset >= 1:
            segment.ensure_columns(100)
            offsets, positions = list(segment.index.offsets), list(segment.index.positions)
            segment.rebuild_index(100, segment.size, segment.end_offset)
            assert (offsets, positions) == (list(segment.index.offsets), list(segment.index.positions))


def test_a_kill_loses_nothing_behind_a_deletion_that_no_sync_has_reached() -> None:
    files = new_disk(1)
    log = PartitionLog(files, DIRECTORY, config=CONFIG, waits_for_sync=False, now_ms=NOW_MS)
    append(log, b"deleted")
    log.delete_before(1)
    log.roll(NOW_MS)
    append(log, b"acknowledged")
    again = PartitionLog(files.restart(), DIRECTORY, config=CONFIG, waits_for_sync=False, now_ms=NOW_MS)
    assert values_from(again) == {1: b"acknowledged"}


def check_producers_are_known(files: FaultyFiles, sequences: int) -> None:
    log = opened(files, leader_epoch=5)
    for sequence in range(sequences - 3, sequences):
        again = append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
        assert (again.duplicate, again.base_offset) == (True, sequence)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("to_the_end", [True, False])
def test_producers_are_known_though_their_batches_were_deleted_before_a_power_loss(
    seed: int, to_the_end: bool
) -> None:
    files = new_disk(seed)
    log = opened(files)
    for sequence in range(12):
        append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
        if sequence % 4 == seed % 4:
            log.sync_now()
    log.sync_now()
    if to_the_end:
        # As retention does when even the newest data is too old.
        log.roll(NOW_MS)
    log.delete_before(12)
    check_producers_are_known(files.crash(), 12)


def test_producers_are_known_though_a_deletion_was_killed_anywhere() -> None:
    def fill(files: FaultyFiles) -> PartitionLog:
        log = opened(files)
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
def test_a_state_below_the_synced_offset_is_kept_however_many_lie_above_it(seed: int) -> None:
    files = new_disk(seed)
    log = opened(files)
    for sequence in range(8):
        append(log, b"value-%d" % sequence, producer=(7, 0, sequence))
    log.roll(NOW_MS)
    append(log, b"behind them")
    log.sync_now()
    log.delete_before(8)
    # Many rolls without a sync: their states tell of batches that the power loss may take.
    for number in range(20):
        append(log, b"unsynced-%d" % number)
    check_producers_are_known(files.crash(), 8)
