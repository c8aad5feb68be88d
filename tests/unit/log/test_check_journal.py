from __future__ import annotations

from pathlib import Path

import pytest

from faults.disk.faulty_files import FaultyFiles
from headrace.clock import SystemClock
from headrace.errors import DamagedState
from headrace.log.committer import Committer
from headrace.log.journal import Journal, check_journal

DIRECTORY = Path("/disk/journal")


async def written(files: FaultyFiles) -> None:
    files.make_dir(DIRECTORY)
    files.sync_dir(DIRECTORY.parent)
    committer = Committer()
    journal = Journal(files, DIRECTORY, SystemClock(), committer)
    for number in range(20):
        await journal.write([b"entry-%d" % number])
    await journal.close()
    await committer.close()


def everything(files: FaultyFiles) -> dict[str, bytes]:
    return {name: files.content(DIRECTORY / name) for name in files.list(DIRECTORY)}


async def test_the_check_of_an_intact_journal_changes_nothing() -> None:
    files = FaultyFiles(1)
    await written(files)
    before = everything(files)
    check_journal(files, DIRECTORY, is_new=False)
    assert everything(files) == before


@pytest.mark.parametrize(
    "damage", ["flip", "cut", "cut to a batch", "remove log", "remove mark", "zero mark"]
)
async def test_damage_is_reported_with_its_position_before_anything_changes(damage: str) -> None:
    files = FaultyFiles(1)
    await written(files)
    log, mark = DIRECTORY / f"{0:020d}.log", DIRECTORY / "mark"
    content = files.content(log)
    if damage == "flip":
        files.damage(log, 300, bytes([content[300] ^ 4]))
    elif damage == "cut":
        files.cut(log, len(content) - 1)
    elif damage == "cut to a batch":
        files.cut(log, int.from_bytes(content[8:12], "big") + 12)
    elif damage == "zero mark":
        files.damage(mark, 0, bytes(4152))
    else:
        files.remove(log if damage == "remove log" else mark)
    before = everything(files)
    with pytest.raises(DamagedState) as raised:
        check_journal(files, DIRECTORY, is_new=False)
    assert str(DIRECTORY) in str(raised.value)
    assert "nothing was changed" in str(raised.value)
    assert everything(files) == before


def test_a_missing_journal_is_not_replaced_by_an_empty_one() -> None:
    files = FaultyFiles(1)
    files.make_dir(DIRECTORY)
    check_journal(files, DIRECTORY, is_new=True)
    with pytest.raises(DamagedState, match="is damaged"):
        check_journal(files, DIRECTORY, is_new=False)


async def test_a_torn_tail_of_the_journal_is_not_damage() -> None:
    files = FaultyFiles(1)
    await written(files)
    file = files.open(DIRECTORY / f"{0:020d}.log")
    file.pwrite([b"torn" * 30], file.size())
    check_journal(files, DIRECTORY, is_new=False)
