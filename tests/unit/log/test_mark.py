from __future__ import annotations

import random
from pathlib import Path

import pytest

from faults.disk.faulty_files import FaultyFiles
from headrace.log.mark import Mark, MarkFile

HOME = Path("/disk")
PATH = HOME / "mark"
SLOTS = (slice(0, 56), slice(4096, 4152))


def mark(number: int) -> Mark:
    return Mark(0, number, 0, 100 * number)


def created(files: FaultyFiles) -> MarkFile:
    file = MarkFile.create(files, HOME, mark(0))
    files.sync_dir(HOME)
    return file


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_never_damages_both_slots(seed: int) -> None:
    rng = random.Random(seed)
    files = FaultyFiles(seed)
    file = created(files)
    for number in range(1, 40):
        act = rng.choice(("write", "write", "sync", "kill"))
        if act == "write":
            file.write(mark(number))
        elif act == "sync":
            file.sync()
        else:
            files = files.restart()
            file = MarkFile(files, HOME)
            file.load()
        content, durable = files.content(PATH), files.durable_content(PATH)
        assert durable is not None
        assert any(content[slot] == durable[slot] for slot in SLOTS)


def test_a_mark_during_a_sync_is_written_after_it() -> None:
    files = FaultyFiles(1)
    file = created(files)
    file.write(mark(1))
    files.watch = lambda operation, stage: file.write(mark(2)) if stage == "during" else None
    file.sync()
    files.watch = None
    assert file.unsynced
    assert MarkFile(files, HOME).load() == mark(2)
    for _ in range(50):
        assert MarkFile(files.crash(), HOME).load() in (mark(1), mark(2))


def test_a_mark_whose_sync_failed_is_written_again() -> None:
    files = FaultyFiles(1)
    file = created(files)
    file.write(mark(1))
    files.forget_sync(path="*/mark")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert file.unsynced
    file.sync()
    for _ in range(50):
        assert MarkFile(files.crash(), HOME).load() == mark(1)


def test_the_mark_file_gets_its_name_when_both_slots_are_durable() -> None:
    files = FaultyFiles(1)
    files.crash_at(1, when="after", kind="rename")
    with pytest.raises(BaseException, match="ended"):
        created(files)
    files = files.restart()
    files.sync_dir(HOME)
    for _ in range(50):
        assert MarkFile(files.crash(), HOME).load() == mark(0)
