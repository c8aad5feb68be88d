from __future__ import annotations

import contextlib
import itertools
import threading

import pytest

from faults.disk.faulty_files import HOME, Crash, FaultyFiles
from tests.unit.disk.disk_contents import create_file

# Crashes at chosen operations.


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_can_happen_at_each_operation(when):
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


def test_no_operation_takes_effect_after_the_crash():
    files = FaultyFiles()
    file = create_file(files, "a", b"data")
    files.crash_at(1, kind="write")
    for _ in range(2):
        with pytest.raises(Crash):
            file.pwrite([b"gone"], 0)
    with pytest.raises(Crash):
        file.pread(1, 0)
    assert files.restart().content(HOME / "a") == b"data"


def test_a_watcher_is_called_for_each_operation_and_can_end_the_process():
    files = FaultyFiles()
    seen = []
    files.watch = lambda operation, stage: seen.append((operation.kind, stage))
    file = create_file(files, "a", b"data")
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


def test_the_trace_records_kind_path_offset_and_size():
    files = FaultyFiles()
    file = create_file(files, "a", b"data")
    file.pread(3, 1)
    files.rename(HOME / "a", HOME / "b")
    traced = [
        (o.number, o.kind, o.path.name, o.target and o.target.name, o.offset, o.size) for o in files.trace
    ]
    assert traced == [
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
    file = create_file(files, "a")
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


def test_after_a_crash_during_a_sync_the_bytes_may_be_durable_or_not():
    files = FaultyFiles()
    file = create_file(files, "a")
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
    file = create_file(files, "a")

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


# What a test may do without the port.


def test_damage_and_cut_change_both_disk_and_cache():
    files = FaultyFiles()
    create_file(files, "a", b"0123456789")
    files.damage(HOME / "a", 8, b"xxxxx")
    assert files.content(HOME / "a") == files.crash().content(HOME / "a") == b"01234567xx"
    files = FaultyFiles()
    create_file(files, "a", b"0123456789")
    files.cut(HOME / "a", 4)
    assert files.content(HOME / "a") == files.crash().content(HOME / "a") == b"0123"


def test_a_cold_read_that_may_not_wait_returns_none():
    files = FaultyFiles(cold_read_share=0.5)
    file = create_file(files, "a", b"data")
    assert {file.pread_nowait(4, 0) for _ in range(50)} == {None, b"data"}
    assert {file.pread(4, 0) for _ in range(50)} == {b"data"}


def test_all_files_can_be_copied_to_a_real_directory(tmp_path):
    files = FaultyFiles()
    create_file(files, "a", b"data")
    files.make_dir(HOME / "d")
    create_file(files, "d/b", b"more", durable=False)
    files.write_out(tmp_path)
    assert (tmp_path / "disk" / "a").read_bytes() == b"data"
    assert (tmp_path / "disk" / "d" / "b").read_bytes() == b"more"
