"""Compaction is cut short at every operation: by a kill, a power loss, a full disk, a failing sync."""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.log.compaction import due
from headrace.log.pace import Interrupted
from headrace.log.partition import PartitionLog
from headrace.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.compacting import (
    COMPACTING,
    Seen,
    assert_unbroken,
    began,
    compact,
    put,
    read_all,
    run,
    seal,
)
from tests.unit.log.conftest import NOW_MS

DIRECTORY = Path("/disk/partition")
OUTCOMES = 8


def opened(files: FaultyFiles, *, leader_epoch: int = 0) -> PartitionLog:
    return PartitionLog(files, DIRECTORY, config=COMPACTING, leader_epoch=leader_epoch, now_ms=NOW_MS)


def churned(files: FaultyFiles) -> PartitionLog:
    """Four segments to compact, one of them compacted before, with a deletion that is about to expire."""
    log = opened(files)
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


def cut_at(number: int, when: str) -> tuple[FaultyFiles, Seen] | None:
    """The disk when the operation of this number was the last; ``None`` if there are not so many."""
    files = FaultyFiles(number)
    files.make_dir(DIRECTORY)
    files.sync_dir(DIRECTORY.parent)
    log = churned(files)
    before = read_all(log)
    fault = files.crash_at(number, when=when)  # type: ignore[arg-type]
    with contextlib.suppress(Crash):
        compact(log, files)
    return (files, before) if fault.hits else None


def cut_short() -> Iterator[tuple[FaultyFiles, Seen]]:
    for number in itertools.count(1):
        for when in ("before", "after"):
            cut = cut_at(number, when)
            if cut is None:
                assert number > 20
                return
            yield cut


def has_swap(files: FaultyFiles) -> bool:
    return any(name.endswith(".swap") for name in files.restart().list(DIRECTORY))


def check(log: PartitionLog, before: Seen) -> None:
    """The same table, at the same offsets; deletions that nobody can read any more are told of."""
    assert log.report.damage == []
    assert_unbroken(log)
    found = read_all(log)
    assert found.fold() == before.fold()
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


def test_a_kill_anywhere_leaves_the_old_segments_or_the_new_one() -> None:
    for files, before in cut_short():
        log = opened(files.restart(), leader_epoch=1)
        check(log, before)
        compact(log, log._files)  # type: ignore[arg-type]
        check(log, before)


def test_a_power_loss_anywhere_leaves_the_old_segments_or_the_new_one() -> None:
    for files, before in cut_short():
        for _ in range(OUTCOMES):
            check(opened(files.crash(), leader_epoch=1), before)


def test_a_kill_then_a_power_loss_lose_nothing_of_what_was_served_between() -> None:
    for files, before in cut_short():
        after = files.restart()
        between = opened(after, leader_epoch=1)
        served = read_all(between)
        put(between, (b"acknowledged", b"between"))
        between.sync_now()
        for _ in range(2):
            log = opened(after.crash(), leader_epoch=2)
            found = read_all(log)
            assert log.report.damage == []
            assert found.records.items() >= served.records.items()
            assert found.fold() == {**before.fold(), b"acknowledged": b"between"}


def swapping() -> list[int]:
    """Operations behind which a swap is decided and not finished."""
    return [number for number in range(1, 40) if (cut := cut_at(number, "after")) and has_swap(cut[0])]


def test_a_recovery_from_a_swap_killed_anywhere_can_be_done_again() -> None:
    numbers = swapping()
    hits = 0
    # Just decided, and decided with some of the old files gone.
    for number in (numbers[0], numbers[4]):
        for operation in itertools.count(1):
            cut = cut_at(number, "after")
            assert cut is not None
            files, before = cut
            recovering = files.restart()
            fault = recovering.crash_at(operation, when="after")
            with contextlib.suppress(Crash):
                opened(recovering, leader_epoch=1)
            if not fault.hits:
                break
            hits += 1
            for _ in range(OUTCOMES):
                check(opened(recovering.crash(), leader_epoch=2), before)
            check(opened(recovering.restart(), leader_epoch=2), before)
    assert hits > 20


@pytest.mark.parametrize("kind", ["write", "create", "sync", "rename", "remove", "sync_dir"])
def test_a_disk_that_fails_during_compaction_loses_nothing(kind: str) -> None:
    for number in itertools.count(1):
        files = FaultyFiles(number)
        files.make_dir(DIRECTORY)
        files.sync_dir(DIRECTORY.parent)
        log = churned(files)
        before = read_all(log)
        fault = files.fail(kind, nth=number, error=errno.EIO)
        compaction = began(log, files)
        assert compaction is not None
        with contextlib.suppress(OSError, Interrupted):
            run(compaction)
        compaction.end()
        if not fault.hits:
            assert number > 1
            return
        files.heal()
        # The process goes on with what it has, and the next one finds the same.
        assert read_all(log).fold() == before.fold()
        if compaction.is_unsettled:
            assert due(log, NOW_MS) is None
        else:
            compact(log, files)
            assert read_all(log).fold() == before.fold()
        put(log, (b"after", b"1"))
        log.sync_now()
        for next_one in (files.crash(), files.crash(), files.restart()):
            again = opened(next_one, leader_epoch=1)
            assert again.report.damage == []
            assert_unbroken(again)
            assert read_all(again).fold() == {**before.fold(), b"after": b"1"}


def failing_starts(kind: str, path: str = "*", *, first: int = 1) -> Iterator[tuple[FaultyFiles, Seen]]:
    """Disks with a decided swap, of which the next start cannot do one thing."""
    for number in swapping():
        for nth in itertools.count(first):
            cut = cut_at(number, "after")
            assert cut is not None
            files, before = cut
            trial = files.restart()
            fault = trial.fail(kind, path=path, nth=nth)
            with contextlib.suppress(OSError):
                opened(trial, leader_epoch=1)
            if not fault.hits:
                break
            cut = cut_at(number, "after")
            assert cut is not None
            starting = cut[0].restart()
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
        # With the first it is not known whether the decision is durable.
        ("sync_dir", "*", 2),
    ],
)
def test_a_start_that_cannot_finish_a_swap_serves_all_and_the_next_one_finishes(
    kind: str, path: str, first: int
) -> None:
    starts = 0
    for files, before in failing_starts(kind, path, first=first):
        starts += 1
        log = opened(files, leader_epoch=1)
        assert log.unsettled is not None
        assert log.fenced is None
        assert due(log, NOW_MS) is None
        assert_unbroken(log)
        assert read_all(log).fold() == before.fold()
        served = read_all(log)
        put(log, (b"after", b"1"))
        log.sync_now()
        for next_one in (files.crash(), files.crash(), files.restart()):
            again = opened(next_one, leader_epoch=2)
            assert again.unsettled is None
            assert again.report.damage == []
            assert_unbroken(again)
            found = read_all(again)
            assert found.records.items() >= served.records.items()
            assert found.fold() == {**before.fold(), b"after": b"1"}
            names = next_one.list(DIRECTORY)
            assert not [name for name in names if name.endswith((".swap", ".compacted", ".new"))]
            compact(again, next_one)
            assert read_all(again).fold() == found.fold()
    assert starts


def test_a_start_that_cannot_tell_whether_a_swap_is_durable_is_refused_and_changes_nothing() -> None:
    files, before = next(failing_starts("sync_dir"))
    names = files.list(DIRECTORY)
    with pytest.raises(OSError, match="Input/output"):
        opened(files, leader_epoch=1)
    assert files.list(DIRECTORY) == names
    check(opened(files.restart(), leader_epoch=2), before)


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_a_file_that_could_not_take_its_name_can_be_deleted(end: str) -> None:
    for files, _ in failing_starts("rename", "*.log.compacted"):
        log = opened(files, leader_epoch=1)
        kept = log.segments[-1].base_offset
        expected = {offset: record for offset, record in read_all(log).records.items() if offset >= kept}
        assert log.delete_before(kept) == kept
        again = opened(files.crash() if end == "crash" else files.restart(), leader_epoch=2)
        assert again.report.damage == []
        assert again.unsettled is None
        assert again.start_offset == kept
        assert read_all(again).records == expected
