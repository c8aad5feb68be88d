from __future__ import annotations

import contextlib
import errno
import itertools
import threading
from collections import Counter

import pytest

from headrace.files import LockHeld
from headrace.testing.faulty_files import HOME, Crash, FaultyFiles

SEEDS = range(300)


def made(files, name, data=b"", *, durable=True):
    file = files.open(HOME / name, create=True)
    if data:
        file.pwrite([data], 0)
    if durable:
        file.sync()
        files.sync_dir(HOME)
    return file


def outcomes(prepare, look, seeds=SEEDS):
    """How often each view of the disk was seen after a power loss."""
    seen = Counter()
    for seed in seeds:
        files = FaultyFiles(seed)
        prepare(files)
        seen[look(files.crash())] += 1
    return seen


def content(name):
    return lambda files: files.content(HOME / name) if files.exists(HOME / name) else None


# Power loss and data.


def test_synced_bytes_under_a_synced_name_always_survive():
    def prepare(files):
        made(files, "a", b"x" * 2000)

    assert outcomes(prepare, content("a")) == {b"x" * 2000: len(SEEDS)}


def test_unsynced_bytes_may_survive_or_not():
    def prepare(files):
        made(files, "a", b"old").pwrite([b"new"], 3)

    seen = outcomes(prepare, content("a"))
    assert {b"old", b"oldnew"} <= set(seen)
    assert all(data.startswith(b"old") for data in seen)


def test_one_write_is_torn_at_any_byte_and_at_sectors():
    def prepare(files):
        made(files, "a").pwrite([b"x" * 2000], 0)

    def kept(files):
        data = files.content(HOME / "a")
        return len(data), data.count(b"x")

    seen = outcomes(prepare, kept)
    lengths = {length for length, _ in seen}
    assert {0, 512, 1024, 1536, 2000} <= lengths
    assert any(length % 512 for length in lengths - {2000})
    assert any(count < length for length, count in seen), "holes: the size is there, a sector is not"


def test_writes_are_reordered_and_dropped_in_the_middle():
    def prepare(files):
        file = made(files, "a")
        for index, letter in enumerate([b"a", b"b", b"c"]):
            file.pwrite([letter * 512], index * 512)

    def letters(files):
        data = files.content(HOME / "a")
        return bytes(data[start] for start in range(0, len(data), 512))

    seen = set(outcomes(prepare, letters))
    assert {b"", b"a", b"ab", b"abc", b"a\0c", b"\0bc", b"\0\0c", b"\0\0\0"} <= seen


def test_overwritten_bytes_show_the_old_the_new_or_a_mix_by_sector():
    def prepare(files):
        file = made(files, "a", b"1" * 1024)
        file.pwrite([b"2" * 1024], 0)
        file.pwrite([b"3" * 512], 0)

    seen = set(outcomes(prepare, content("a")))
    halves = {(data[:512], data[512:]) for data in seen}
    for first, second in itertools.product([b"1", b"2", b"3"], [b"1", b"2"]):
        assert (first * 512, second * 512) in halves


def test_a_write_after_a_sync_touches_nothing_before_it():
    def prepare(files):
        file = made(files, "a", b"s" * 700)
        file.pwrite([b"n" * 700], 700)

    for data in outcomes(prepare, content("a")):
        assert data[:700] == b"s" * 700


def test_an_unsynced_truncation_may_happen_or_not_and_a_synced_one_has():
    def shorten(files):
        made(files, "a", b"x" * 1000).truncate(10)

    assert set(outcomes(shorten, content("a"))) == {b"x" * 10, b"x" * 1000}

    def shorten_and_sync(files):
        file = made(files, "a", b"x" * 1000)
        file.truncate(10)
        file.sync()

    assert set(outcomes(shorten_and_sync, content("a"))) == {b"x" * 10}


def test_what_was_written_after_a_lost_truncation_is_lost():
    def prepare(files):
        file = made(files, "a", b"x" * 1000)
        file.truncate(0)
        file.pwrite([b"y" * 600], 0)

    for data in outcomes(prepare, content("a")):
        assert b"x" not in data or data == b"x" * 1000


# Power loss and names.


def test_a_name_that_was_not_synced_may_vanish_with_its_synced_bytes():
    def prepare(files):
        made(files, "a", b"data", durable=False).sync()

    assert set(outcomes(prepare, content("a"))) == {None, b"data"}


def test_a_name_may_survive_the_bytes():
    def prepare(files):
        made(files, "a", b"data", durable=False)
        files.sync_dir(HOME)

    assert {b"", b"data"} <= set(outcomes(prepare, content("a")))


def test_a_rename_happens_whole_or_not():
    def prepare(files):
        made(files, "a", b"old")
        made(files, "b", b"new")
        files.rename(HOME / "b", HOME / "a")

    def both(files):
        return content("a")(files), content("b")(files)

    assert set(outcomes(prepare, both)) == {(b"old", b"new"), (b"new", None)}

    def prepare_and_sync(files):
        prepare(files)
        files.sync_dir(HOME)

    assert set(outcomes(prepare_and_sync, both)) == {(b"new", None)}


def test_a_rename_of_an_unsynced_name_never_shows_both_or_something_else():
    def prepare(files):
        made(files, "a", b"old")
        made(files, "b", b"new", durable=False).sync()
        files.rename(HOME / "b", HOME / "a")

    def both(files):
        return content("a")(files), content("b")(files)

    assert set(outcomes(prepare, both)) == {(b"old", None), (b"old", b"new"), (b"new", None)}


def test_a_removed_file_may_come_back_until_the_directory_is_synced():
    def prepare(files):
        made(files, "a", b"data")
        files.remove(HOME / "a")

    assert set(outcomes(prepare, content("a"))) == {None, b"data"}

    def prepare_and_sync(files):
        prepare(files)
        files.sync_dir(HOME)

    assert set(outcomes(prepare_and_sync, content("a"))) == {None}


def test_a_name_made_again_is_the_old_file_or_the_new_one():
    def prepare(files):
        made(files, "a", b"old")
        files.remove(HOME / "a")
        made(files, "a", b"new", durable=False).sync()

    assert set(outcomes(prepare, content("a"))) == {b"old", None, b"new"}


def test_changes_of_names_are_lost_independently():
    def prepare(files):
        for name in "abc":
            made(files, name, durable=False)

    seen = {"".join(names) for names in outcomes(prepare, lambda files: tuple(files.list(HOME)))}
    assert seen == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_lost_directory_takes_everything_with_it():
    def prepare(files):
        files.make_dir(HOME / "d")
        files.open(HOME / "d" / "a", create=True).sync()
        files.sync_dir(HOME / "d")

    def look(files):
        return tuple(files.list(HOME / "d")) if files.exists(HOME / "d") else None

    assert set(outcomes(prepare, look)) == {None, ("a",)}

    def prepare_and_sync(files):
        prepare(files)
        files.sync_dir(HOME)

    assert set(outcomes(prepare_and_sync, look)) == {("a",)}


def test_a_move_between_directories_is_one_change_for_both():
    def prepare(files):
        for name in ("from", "to"):
            files.make_dir(HOME / name)
        files.sync_dir(HOME)
        files.open(HOME / "from" / "a", create=True)
        files.sync_dir(HOME / "from")
        files.rename(HOME / "from" / "a", HOME / "to" / "a")

    def look(files):
        return len(files.list(HOME / "from")), len(files.list(HOME / "to"))

    assert set(outcomes(prepare, look)) == {(1, 0), (0, 1)}

    for synced in ("from", "to"):

        def prepare_and_sync(files, synced=synced):
            prepare(files)
            files.sync_dir(HOME / synced)

        assert set(outcomes(prepare_and_sync, look)) == {(0, 1)}


# Other ends.


def test_a_killed_process_leaves_all_it_wrote():
    files = FaultyFiles()
    file = made(files, "a", b"never synced", durable=False)
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


def test_a_power_loss_after_a_kill_still_knows_what_was_not_synced():
    seen = outcomes(lambda files: made(files, "a", b"data", durable=False), content("a"))
    after_kill = Counter()
    for seed in SEEDS:
        files = FaultyFiles(seed)
        made(files, "a", b"data", durable=False)
        after_kill[content("a")(files.restart().crash())] += 1
    assert after_kill == seen
    assert None in seen


def test_after_a_crash_the_old_files_refuse_everything():
    files = FaultyFiles()
    file = made(files, "a", b"data")
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


def test_a_crash_is_no_error_that_code_could_handle():
    assert not issubclass(Crash, Exception)


def test_the_same_seed_meets_the_same_fate():
    def fate(seed):
        files = FaultyFiles(seed)
        for name in "abc":
            made(files, name, b"x" * 3000, durable=False)
        after = files.crash()
        return {name: after.content(HOME / name) for name in after.list(HOME)}

    assert [fate(seed) for seed in range(20)] == [fate(seed) for seed in range(20)]
    assert len({repr(fate(seed)) for seed in range(20)}) > 5


def test_what_survived_is_durable_from_then_on():
    for seed in range(50):
        files = FaultyFiles(seed)
        made(files, "a", b"x" * 3000, durable=False)
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
    first, second = made(files, "a"), made(files, "b")
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


def test_any_operation_that_changes_something_can_fail_by_its_number():
    def run(files):
        file = made(files, "a", b"data")
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


def test_a_fault_may_last():
    files = FaultyFiles()
    fault = files.fail("read", times=None)
    file = made(files, "a", b"data")
    for _ in range(3):
        with pytest.raises(OSError):
            file.pread(1, 0)
    assert fault.hits == 3
    files.heal()
    assert file.pread(4, 0) == b"data"


def test_a_rename_matches_by_either_path():
    for path in ("*/a", "*/b"):
        files = FaultyFiles()
        made(files, "a")
        files.fail("rename", path=path)
        with pytest.raises(OSError):
            files.rename(HOME / "a", HOME / "b")
        assert files.list(HOME) == ["a"]


def test_a_short_write_takes_a_part():
    files = FaultyFiles(seed=1)
    file = made(files, "a")
    files.short_write(taken=3)
    assert file.pwrite([b"abc", b"def"], 0) == 3
    assert file.pread(10, 0) == b"abc"
    files.short_write(times=None)
    taken = {file.pwrite([bytes(10)], 0) for _ in range(100)}
    assert taken == set(range(10))


def test_a_full_disk_takes_what_fits_and_then_nothing():
    files = FaultyFiles(capacity_bytes=1000)
    file = made(files, "a")
    assert file.pwrite([bytes(900)], 0) == 900
    assert file.pwrite([bytes(300)], 900) == 100
    with pytest.raises(OSError) as caught:
        file.pwrite([b"x"], 1000)
    assert caught.value.errno == errno.ENOSPC
    assert file.pwrite([b"over what is there"], 0) == 18
    assert files.used_bytes == 1000
    other = made(files, "b")
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


def test_the_disk_stays_full_over_restarts_and_power_losses():
    files = FaultyFiles(capacity_bytes=10)
    made(files, "a", b"0123456789")
    for after in (files.restart(), files.restart().crash()):
        assert after.used_bytes == 10
        with pytest.raises(OSError):
            after.open(HOME / "a").pwrite([b"x"], 10)


def test_a_failed_sync_forgets_what_still_reads_back():
    files = FaultyFiles()
    file = made(files, "a", b"safe ")
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


def test_a_later_sync_does_not_bring_back_what_was_forgotten():
    for seed in range(50):
        files = FaultyFiles(seed)
        file = made(files, "a", b"safe ")
        file.pwrite([b"lost "], 5)
        files.forget_sync()
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        assert files.crash().content(HOME / "a") == b"safe "


def test_what_is_written_after_the_failed_sync_is_synced_around_the_hole():
    files = FaultyFiles()
    file = made(files, "a", b"safe ")
    file.pwrite([b"lost "], 5)
    files.forget_sync()
    with pytest.raises(OSError):
        file.sync()
    file.pwrite([b"later"], 10)
    file.sync()
    assert files.crash().content(HOME / "a") == b"safe \0\0\0\0\0later"
    files = FaultyFiles()
    file = made(files, "a", b"safe ")
    file.pwrite([b"lost "], 5)
    files.forget_sync()
    with pytest.raises(OSError):
        file.sync()
    file.pwrite([b"again"], 5)
    file.sync()
    assert files.crash().content(HOME / "a") == b"safe again"


def test_a_sync_that_fails_without_forgetting_leaves_the_bytes_to_the_next():
    files = FaultyFiles()
    file = made(files, "a")
    file.pwrite([b"data"], 0)
    files.fail("sync")
    with pytest.raises(OSError):
        file.sync()
    assert files.durable_content(HOME / "a") == b""
    file.sync()
    assert files.durable_content(HOME / "a") == b"data"


def test_ignored_syncs_lose_what_was_promised():
    seen = Counter()
    for seed in SEEDS:
        files = FaultyFiles(seed, syncs_are_ignored=True)
        made(files, "a", b"data")
        seen[content("a")(files.crash())] += 1
    assert seen[None] > 0
    assert seen[b"data"] < len(SEEDS)


# Crashes at chosen operations.


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_strikes_each_operation_in_turn(when):
    def run(files):
        file = files.open(HOME / "new", create=True)
        file.pwrite([b"data"], 0)
        file.sync()
        files.rename(HOME / "new", HOME / "a")
        files.sync_dir(HOME)

    seen = []
    for n in itertools.count(1):
        files = FaultyFiles(seed=n)
        fault = files.crash_at(n, when=when)
        with contextlib.suppress(Crash):
            run(files)
        if not fault.hits:
            break
        after = files.restart()
        seen.append({name: after.content(HOME / name) for name in after.list(HOME)})
    steps = [{}, {"new": b""}, {"new": b"data"}, {"new": b"data"}, {"a": b"data"}, {"a": b"data"}]
    assert seen == (steps[:-1] if when == "before" else steps[1:])


def test_nothing_happens_after_the_crash_struck():
    files = FaultyFiles()
    file = made(files, "a", b"data")
    files.crash_at(1, kind="write")
    for _ in range(2):
        with pytest.raises(Crash):
            file.pwrite([b"gone"], 0)
    with pytest.raises(Crash):
        file.pread(1, 0)
    assert files.restart().content(HOME / "a") == b"data"


def test_a_watcher_sees_operations_and_may_end_the_process():
    files = FaultyFiles()
    seen = []
    files.watch = lambda operation, stage: seen.append((operation.kind, stage))
    file = made(files, "a", b"data")
    assert seen == [
        ("create", "before"),
        ("create", "after"),
        ("write", "before"),
        ("write", "after"),
        ("sync", "before"),
        ("sync", "during"),
        ("sync", "after"),
        ("sync_dir", "before"),
        ("sync_dir", "after"),
    ]

    def end(operation, stage):
        raise Crash

    files.watch = end
    with pytest.raises(Crash):
        file.pread(1, 0)
    files.watch = None
    with pytest.raises(Crash):
        file.pread(1, 0)


def test_the_trace_tells_kind_path_offset_and_size():
    files = FaultyFiles()
    file = made(files, "a", b"data")
    file.pread(3, 1)
    files.rename(HOME / "a", HOME / "b")
    told = [
        (o.number, o.kind, o.path.name, o.target and o.target.name, o.offset, o.size) for o in files.trace
    ]
    assert told == [
        (1, "create", "a", None, 0, 0),
        (2, "write", "a", None, 0, 4),
        (3, "sync", "a", None, 0, 0),
        (4, "sync_dir", "disk", None, 0, 0),
        (5, "read", "a", None, 1, 3),
        (5, "rename", "a", "b", 0, 0),
    ]


# Threads.


def test_a_write_after_the_sync_began_is_not_covered_by_it():
    files = FaultyFiles()
    file = made(files, "a")
    began, go_on = threading.Event(), threading.Event()

    def watch(operation, stage):
        if stage == "during":
            began.set()
            assert go_on.wait(30)

    file.pwrite([b"before "], 0)
    files.watch = watch
    worker = threading.Thread(target=file.sync)
    worker.start()
    assert began.wait(30)
    file.pwrite([b"after"], 7)
    go_on.set()
    worker.join(30)
    assert files.content(HOME / "a") == b"before after"
    assert files.durable_content(HOME / "a") == b"before "


def test_a_crash_during_a_sync_leaves_the_bytes_in_doubt():
    files = FaultyFiles()
    file = made(files, "a")
    file.pwrite([b"data"], 0)
    began, go_on = threading.Event(), threading.Event()
    ended = []

    def watch(operation, stage):
        if stage == "during":
            began.set()
            assert go_on.wait(30)

    def sync():
        try:
            file.sync()
        except Crash:
            ended.append("crash")

    files.watch = watch
    worker = threading.Thread(target=sync)
    worker.start()
    assert began.wait(30)
    after = files.restart()
    go_on.set()
    worker.join(30)
    assert ended == ["crash"]
    assert after.durable_content(HOME / "a") == b""


def test_many_threads_lose_nothing():
    files = FaultyFiles()
    file = made(files, "a")

    def work(index):
        for step in range(200):
            file.pwrite([bytes([index])], index * 200 + step)
            if step % 10 == 0:
                file.sync()

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    file.sync()
    assert files.durable_content(HOME / "a") == b"".join(bytes([index]) * 200 for index in range(4))


# What a test may do past the port.


def test_damage_and_cuts_reach_disk_and_cache():
    files = FaultyFiles()
    made(files, "a", b"0123456789")
    files.damage(HOME / "a", 8, b"xxxxx")
    assert files.content(HOME / "a") == files.crash().content(HOME / "a") == b"01234567xx"
    files = FaultyFiles()
    made(files, "a", b"0123456789")
    files.cut(HOME / "a", 4)
    assert files.content(HOME / "a") == files.crash().content(HOME / "a") == b"0123"


def test_cold_reads_are_refused_when_they_may_not_wait():
    files = FaultyFiles(cold_read_share=0.5)
    file = made(files, "a", b"data")
    assert {file.pread_ready(4, 0) for _ in range(50)} == {None, b"data"}
    assert {file.pread(4, 0) for _ in range(50)} == {b"data"}


def test_all_can_be_written_out_for_others_to_look_at(tmp_path):
    files = FaultyFiles()
    made(files, "a", b"data")
    files.make_dir(HOME / "d")
    made(files, "d/b", b"more", durable=False)
    files.write_out(tmp_path)
    assert (tmp_path / "disk" / "a").read_bytes() == b"data"
    assert (tmp_path / "disk" / "d" / "b").read_bytes() == b"more"
