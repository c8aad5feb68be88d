"""Compaction is interrupted at every operation, by a kill, a power loss, a full disk or a failed sync."""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.disk.faulty_files import Crash, FaultyFiles
from headrace.log.compaction import due
from headrace.log.pace import Interrupted
from headrace.log.partition import PartitionLog
from tests.unit.log.compaction_runs import (
    COMPACTED_TOPIC,
    ReadRecords,
    assert_unbroken,
    begin_compaction,
    compact,
    put,
    read_all,
    run,
    seal,
)
from tests.unit.log.conftest import NOW_MS

DIRECTORY = Path("/disk/partition")
OUTCOMES = 8


def open_log(files: FaultyFiles, *, leader_epoch: int = 0) -> PartitionLog:
    return PartitionLog(files, DIRECTORY, config=COMPACTED_TOPIC, leader_epoch=leader_epoch, now_ms=NOW_MS)


def log_with_updates(files: FaultyFiles) -> PartitionLog:
    """A log with four segments to compact, one of them compacted before, and a tombstone that is about to expire."""
    log = open_log(files)
    for number in range(12):
        put(log, (b"key-%d" % (number % 3), b"first-%d" % number))
    put(log, (b"gone", None), producer=(7, 0, 0))
    seal(log)
    compact(log, files, now_ms=NOW_MS - 5000)
    for number in range(24):
        put(log, (b"key-%d" % (number % 3), b"second-%d" % number), producer=(7, 0, number + 1))
    seal(log)
    log.sync_mark()
    return log


def crash_at_operation(number: int, when: str) -> tuple[FaultyFiles, ReadRecords] | None:
    """Crash at the operation with this number; return the disk, or ``None`` if the compaction has fewer operations."""
    files = FaultyFiles(number)
    files.make_dir(DIRECTORY)
    files.sync_dir(DIRECTORY.parent)
    log = log_with_updates(files)
    before = read_all(log)
    fault = files.crash_at(number, when=when)  # type: ignore[arg-type]
    with contextlib.suppress(Crash):
        compact(log, files)
    return (files, before) if fault.hits else None


def crash_at_each_operation() -> Iterator[tuple[FaultyFiles, ReadRecords]]:
    for number in itertools.count(1):
        for when in ("before", "after"):
            crashed = crash_at_operation(number, when)
            if crashed is None:
                assert number > 20
                return
            yield crashed


def has_swap(files: FaultyFiles) -> bool:
    return any(name.endswith(".swap") for name in files.restart().list(DIRECTORY))


def check(log: PartitionLog, before: ReadRecords) -> None:
    """Assert that the log has the same table at the same offsets, and that its horizon covers removed tombstones."""
    assert log.report.damage == []
    assert_unbroken(log)
    found = read_all(log)
    assert found.newest_by_key() == before.newest_by_key()
    assert found.records.items() <= before.records.items()
    newest: dict[bytes, int] = {key: offset for offset, (key, _) in before.records.items()}
    for offset in newest.values():
        if before.records[offset][1] is None and offset not in found.records:
            assert log.tombstone_horizon > offset
        elif before.records[offset][1] is not None:
            assert offset in found.records
    assert not [name for name in log._files.list(DIRECTORY) if name.endswith((".swap", ".compacted", ".new"))]
    (producer,) = log.producers
    assert producer.batches[-1].last_sequence == 24


def test_after_a_kill_at_any_operation_the_log_has_the_old_segments_or_the_new_one() -> None:
    for files, before in crash_at_each_operation():
        log = open_log(files.restart(), leader_epoch=1)
        check(log, before)
        compact(log, log._files)  # type: ignore[arg-type]
        check(log, before)


def test_after_a_power_loss_at_any_operation_the_log_has_the_old_segments_or_the_new_one() -> None:
    for files, before in crash_at_each_operation():
        for _ in range(OUTCOMES):
            check(open_log(files.crash(), leader_epoch=1), before)


def test_records_served_after_a_kill_survive_a_later_power_loss() -> None:
    for files, before in crash_at_each_operation():
        after = files.restart()
        between = open_log(after, leader_epoch=1)
        served = read_all(between)
        put(between, (b"acknowledged", b"between"))
        between.sync_now()
        for _ in range(2):
            log = open_log(after.crash(), leader_epoch=2)
            found = read_all(log)
            assert log.report.damage == []
            assert found.records.items() >= served.records.items()
            assert found.newest_by_key() == {**before.newest_by_key(), b"acknowledged": b"between"}


def operations_with_open_swap() -> list[int]:
    """Numbers of the operations after which the swap file exists."""
    return [
        number
        for number in range(1, 40)
        if (crashed := crash_at_operation(number, "after")) and has_swap(crashed[0])
    ]


def test_a_recovery_of_a_swap_can_be_repeated_after_a_crash_at_any_operation() -> None:
    numbers = operations_with_open_swap()
    hits = 0
    # The first operation after which the swap file exists, and one after which some of the old files are removed.
    for number in (numbers[0], numbers[4]):
        for operation in itertools.count(1):
            crashed = crash_at_operation(number, "after")
            assert crashed is not None
            files, before = crashed
            recovering = files.restart()
            fault = recovering.crash_at(operation, when="after")
            with contextlib.suppress(Crash):
                open_log(recovering, leader_epoch=1)
            if not fault.hits:
                break
            hits += 1
            for _ in range(OUTCOMES):
                check(open_log(recovering.crash(), leader_epoch=2), before)
            check(open_log(recovering.restart(), leader_epoch=2), before)
    assert hits > 20


@pytest.mark.parametrize("kind", ["write", "create", "sync", "rename", "remove", "sync_dir"])
def test_a_disk_that_fails_during_compaction_loses_nothing(kind: str) -> None:
    for number in itertools.count(1):
        files = FaultyFiles(number)
        files.make_dir(DIRECTORY)
        files.sync_dir(DIRECTORY.parent)
        log = log_with_updates(files)
        before = read_all(log)
        fault = files.fail(kind, nth=number, error=errno.EIO)
        compaction = begin_compaction(log, files)
        assert compaction is not None
        with contextlib.suppress(OSError, Interrupted):
            run(compaction)
        compaction.end()
        if not fault.hits:
            assert number > 1
            return
        files.heal()
        # The process continues with its current files, and the next process reads the same records.
        assert read_all(log).newest_by_key() == before.newest_by_key()
        if compaction.has_unfinished_swap:
            assert due(log, NOW_MS) is None
        else:
            compact(log, files)
            assert read_all(log).newest_by_key() == before.newest_by_key()
        put(log, (b"after", b"1"))
        log.sync_now()
        for disk in (files.crash(), files.crash(), files.restart()):
            reopened = open_log(disk, leader_epoch=1)
            assert reopened.report.damage == []
            assert_unbroken(reopened)
            assert read_all(reopened).newest_by_key() == {**before.newest_by_key(), b"after": b"1"}


def failing_starts(
    kind: str, path: str = "*", *, first: int = 1
) -> Iterator[tuple[FaultyFiles, ReadRecords]]:
    """Disks with a swap file, on which one operation of the next start fails."""
    for number in operations_with_open_swap():
        for nth in itertools.count(first):
            crashed = crash_at_operation(number, "after")
            assert crashed is not None
            files, before = crashed
            trial = files.restart()
            fault = trial.fail(kind, path=path, nth=nth)
            with contextlib.suppress(OSError):
                open_log(trial, leader_epoch=1)
            if not fault.hits:
                break
            crashed = crash_at_operation(number, "after")
            assert crashed is not None
            starting = crashed[0].restart()
            starting.fail(kind, path=path, nth=nth)
            yield starting, before


@pytest.mark.parametrize(
    ("kind", "path", "first"),
    [
        ("rename", "*.log.compacted", 1),
        ("remove", "*.log", 1),
        ("remove", "*.index", 1),
        ("remove", "*.swap", 1),
        ("remove", "*.compacted", 1),
        # Not the first sync_dir: if it fails, the broker does not know whether the swap file is durable.
        ("sync_dir", "*", 2),
    ],
)
def test_a_start_that_cannot_finish_a_swap_serves_all_records_and_the_next_start_finishes_it(
    kind: str, path: str, first: int
) -> None:
    starts = 0
    for files, before in failing_starts(kind, path, first=first):
        starts += 1
        log = open_log(files, leader_epoch=1)
        assert log.unfinished_swap is not None
        assert log.fenced is None
        assert due(log, NOW_MS) is None
        assert_unbroken(log)
        assert read_all(log).newest_by_key() == before.newest_by_key()
        served = read_all(log)
        put(log, (b"after", b"1"))
        log.sync_now()
        for disk in (files.crash(), files.crash(), files.restart()):
            reopened = open_log(disk, leader_epoch=2)
            assert reopened.unfinished_swap is None
            assert reopened.report.damage == []
            assert_unbroken(reopened)
            found = read_all(reopened)
            assert found.records.items() >= served.records.items()
            assert found.newest_by_key() == {**before.newest_by_key(), b"after": b"1"}
            names = disk.list(DIRECTORY)
            assert not [name for name in names if name.endswith((".swap", ".compacted", ".new"))]
            compact(reopened, disk)
            assert read_all(reopened).newest_by_key() == found.newest_by_key()
    assert starts


def test_a_start_fails_without_changes_if_a_swap_may_not_be_durable() -> None:
    files, before = next(failing_starts("sync_dir"))
    names = files.list(DIRECTORY)
    with pytest.raises(OSError, match="Input/output"):
        open_log(files, leader_epoch=1)
    assert files.list(DIRECTORY) == names
    check(open_log(files.restart(), leader_epoch=2), before)


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_a_compacted_file_that_could_not_be_renamed_can_be_deleted(end: str) -> None:
    for files, _ in failing_starts("rename", "*.log.compacted"):
        log = open_log(files, leader_epoch=1)
        kept = log.segments[-1].base_offset
        expected = {offset: record for offset, record in read_all(log).records.items() if offset >= kept}
        assert log.delete_before(kept) == kept
        reopened = open_log(files.crash() if end == "crash" else files.restart(), leader_epoch=2)
        assert reopened.report.damage == []
        assert reopened.unfinished_swap is None
        assert reopened.start_offset == kept
        assert read_all(reopened).records == expected
