from __future__ import annotations

import contextlib
import errno
import itertools
from collections import Counter

import pytest

from faults.disk.faulty_files import HOME, Crash, FaultyFiles
from headrace.files import LockHeld
from tests.unit.disk.disk_contents import SEEDS, content, create_file, outcomes

# Other kinds of crashes.


def test_all_writes_survive_a_killed_process():
    files = FaultyFiles()
    file = create_file(files, "a", b"never synced", durable=False)
    lock = files.lock(HOME / "lock")
    with pytest.raises(LockHeld):
        files.lock(HOME / "lock")
    after = files.restart()
    assert after.content(HOME / "a") == b"never synced"
    assert after.durable_content(HOME / "a") is None
    after.lock(HOME / "lock")
    with pytest.raises(Crash):
        file.pwrite([b"x"], 0)
    with pytest.raises(Crash):
        file.sync()
    file.close()
    lock.release()
    with pytest.raises(LockHeld):
        after.lock(HOME / "lock")


def test_a_power_loss_after_a_kill_can_lose_unsynced_writes():
    seen = outcomes(lambda files: create_file(files, "a", b"data", durable=False), content("a"))
    after_kill = Counter()
    for seed in SEEDS:
        files = FaultyFiles(seed)
        create_file(files, "a", b"data", durable=False)
        after_kill[content("a")(files.restart().crash())] += 1
    assert after_kill == seen
    assert None in seen


def test_after_a_crash_every_operation_on_the_old_files_fails():
    files = FaultyFiles()
    file = create_file(files, "a", b"data")
    files.crash()
    operations = [
        lambda: files.open(HOME / "a"),
        lambda: files.exists(HOME / "a"),
        lambda: files.list(HOME),
        lambda: files.sync_dir(HOME),
        lambda: files.lock(HOME / "l"),
        lambda: file.pread(1, 0),
        file.size,
        lambda: file.truncate(0),
    ]
    for operation in operations:
        with pytest.raises(Crash):
            operation()


def test_a_crash_is_not_an_exception_that_code_can_catch():
    assert not issubclass(Crash, Exception)


def test_the_same_seed_has_the_same_outcome():
    def outcome(seed):
        files = FaultyFiles(seed)
        for name in "abc":
            create_file(files, name, b"x" * 3000, durable=False)
        after = files.crash()
        return {name: after.content(HOME / name) for name in after.list(HOME)}

    assert [outcome(seed) for seed in range(20)] == [outcome(seed) for seed in range(20)]
    assert len({repr(outcome(seed)) for seed in range(20)}) > 5


def test_bytes_that_survive_a_power_loss_are_durable():
    for seed in range(50):
        files = FaultyFiles(seed)
        create_file(files, "a", b"x" * 3000, durable=False)
        once = files.crash()
        names = once.list(HOME)
        twice = once.crash()
        assert twice.list(HOME) == names
        assert [twice.content(HOME / name) for name in names] == [files_content(once, name) for name in names]


def files_content(files, name):
    return files.content(HOME / name)


# Faults.


def test_the_nth_operation_of_a_kind_and_path_fails_once():
    files = FaultyFiles()
    fault = files.fail("write", path="*/b", nth=2, error=errno.ENOSPC)
    first, second = create_file(files, "a"), create_file(files, "b")
    for _ in range(3):
        first.pwrite([b"fine"], 0)
    second.pwrite([b"fine"], 0)
    with pytest.raises(OSError) as caught:
        second.pwrite([b"not fine"], 4)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(HOME / "b")
    assert second.pread(100, 0) == b"fine"
    second.pwrite([b" again"], 4)
    assert (fault.hits, fault.matches) == (1, 3)


def test_any_operation_that_changes_the_disk_can_fail_by_its_number():
    def run(files):
        file = create_file(files, "a", b"data")
        file.truncate(2)
        files.rename(HOME / "a", HOME / "b")
        files.make_dir(HOME / "d")
        files.remove_dir(HOME / "d")
        files.remove(HOME / "b")
        files.lock(HOME / "lock")
        file.pread(1, 0)
        files.list(HOME)

    kinds = []
    for n in itertools.count(1):
        files = FaultyFiles()
        fault = files.fail(nth=n)
        with contextlib.suppress(OSError):
            run(files)
        if not fault.hits:
            break
        kinds.append(files.trace[-1].kind)
        assert files.trace[-1].number == n
    expected = [
        "create",
        "write",
        "sync",
        "sync_dir",
        "truncate",
        "rename",
        "make_dir",
        "remove_dir",
        "remove",
        "lock",
    ]
    assert kinds == expected
    assert files.changes == len(expected)
    assert files.counts["read"] == files.counts["list"] == 1


def test_a_fault_can_affect_all_later_operations():
    files = FaultyFiles()
    fault = files.fail("read", times=None)
    file = create_file(files, "a", b"data")
    for _ in range(3):
        with pytest.raises(OSError):
            file.pread(1, 0)
    assert fault.hits == 3
    files.heal()
    assert file.pread(4, 0) == b"data"


def test_a_fault_matches_a_rename_by_its_old_or_new_path():
    for path in ("*/a", "*/b"):
        files = FaultyFiles()
        create_file(files, "a")
        files.fail("rename", path=path)
        with pytest.raises(OSError):
            files.rename(HOME / "a", HOME / "b")
        assert files.list(HOME) == ["a"]


def test_a_short_write_writes_only_part_of_the_data():
    files = FaultyFiles(seed=1)
    file = create_file(files, "a")
    files.short_write(written_bytes=3)
    assert file.pwrite([b"abc", b"def"], 0) == 3
    assert file.pread(10, 0) == b"abc"
    files.short_write(times=None)
    sizes = {file.pwrite([bytes(10)], 0) for _ in range(100)}
    assert sizes == set(range(10))


def test_a_full_disk_returns_a_short_write_and_then_an_error():
    files = FaultyFiles(capacity_bytes=1000)
    file = create_file(files, "a")
    assert file.pwrite([bytes(900)], 0) == 900
    assert file.pwrite([bytes(300)], 900) == 100
    with pytest.raises(OSError) as caught:
        file.pwrite([b"x"], 1000)
    assert caught.value.errno == errno.ENOSPC
    assert file.pwrite([b"over what is there"], 0) == 18
    assert files.used_bytes == 1000
    other = create_file(files, "b")
    with pytest.raises(OSError):
        other.pwrite([b"x"], 0)
    file.truncate(990)
    assert other.pwrite([bytes(50)], 0) == 10
    files.remove(HOME / "a")
    with pytest.raises(OSError):
        other.pwrite([b"x"], 10)
    file.close()
    assert files.used_bytes == 10
    assert other.pwrite([bytes(990)], 10) == 990
    files.capacity_bytes = None
    assert other.pwrite([bytes(5000)], 1000) == 5000
    assert files.restart().used_bytes == 6000


def test_a_full_disk_stays_full_after_restarts_and_power_losses():
    files = FaultyFiles(capacity_bytes=10)
    create_file(files, "a", b"0123456789")
    for after in (files.restart(), files.restart().crash()):
        assert after.used_bytes == 10
        with pytest.raises(OSError):
            after.open(HOME / "a").pwrite([b"x"], 10)


def test_bytes_lost_by_a_failed_sync_can_still_be_read():
    files = FaultyFiles()
    file = create_file(files, "a", b"safe ")
    file.pwrite([b"lost "], 5)
    fault = files.forget_sync()
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    assert fault.hits == 1
    assert file.pread(100, 0) == b"safe lost "
    file.sync()
    file.pwrite([b"later"], 10)
    file.sync()
    assert files.restart().content(HOME / "a") == b"safe lost later"


def test_a_later_sync_does_not_write_the_lost_bytes():
    for seed in range(50):
        files = FaultyFiles(seed)
        file = create_file(files, "a", b"safe ")
        file.pwrite([b"lost "], 5)
        files.forget_sync()
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        assert files.crash().content(HOME / "a") == b"safe "


def test_writes_after_a_failed_sync_are_synced_around_the_gap():
    files = FaultyFiles()
    file = create_file(files, "a", b"safe ")
    file.pwrite([b"lost "], 5)
    files.forget_sync()
    with pytest.raises(OSError):
        file.sync()
    file.pwrite([b"later"], 10)
    file.sync()
    assert files.crash().content(HOME / "a") == b"safe \0\0\0\0\0later"
    files = FaultyFiles()
    file = create_file(files, "a", b"safe ")
    file.pwrite([b"lost "], 5)
    files.forget_sync()
    with pytest.raises(OSError):
        file.sync()
    file.pwrite([b"again"], 5)
    file.sync()
    assert files.crash().content(HOME / "a") == b"safe again"


def test_after_a_failed_sync_without_loss_the_next_sync_writes_the_bytes():
    files = FaultyFiles()
    file = create_file(files, "a")
    file.pwrite([b"data"], 0)
    files.fail("sync")
    with pytest.raises(OSError):
        file.sync()
    assert files.durable_content(HOME / "a") == b""
    file.sync()
    assert files.durable_content(HOME / "a") == b"data"


def test_ignored_syncs_lose_synced_bytes():
    seen = Counter()
    for seed in SEEDS:
        files = FaultyFiles(seed, syncs_are_ignored=True)
        create_file(files, "a", b"data")
        seen[content("a")(files.crash())] += 1
    assert seen[None] > 0
    assert seen[b"data"] < len(SEEDS)
