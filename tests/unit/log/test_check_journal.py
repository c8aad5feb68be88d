from __future__ import annotations

from pathlib import Path

import pytest

from headrace.clock import SystemClock
from headrace.errors import DamagedState
from headrace.log.committer import Committer
from headrace.log.journal import Journal, check_journal
from headrace.testing.faulty_files import FaultyFiles

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


async def test_a_whole_journal_passes_and_is_left_as_it_is() -> None:
    files = FaultyFiles(1)
    await written(files)
    before = everything(files)
    check_journal(files, DIRECTORY, is_new=False)
    assert everything(files) == before


@pytest.mark.parametrize("harm", ["flip", "cut", "cut to a batch", "remove log", "remove mark", "zero mark"])
async def test_damage_is_refused_with_its_place_before_anything_is_changed(harm: str) -> None:
    files = FaultyFiles(1)
    await written(files)
    log, mark = DIRECTORY / f"{0:020d}.log", DIRECTORY / "mark"
    content = files.content(log)
    if harm == "flip":
        files.damage(log, 300, bytes([content[300] ^ 4]))
    elif harm == "cut":
        files.cut(log, len(content) - 1)
    elif harm == "cut to a batch":
        files.cut(log, int.from_bytes(content[8:12], "big") + 12)
    elif harm == "zero mark":
        files.damage(mark, 0, bytes(4152))
    else:
        files.remove(log if harm == "remove log" else mark)
    before = everything(files)
    with pytest.raises(DamagedState) as raised:
        check_journal(files, DIRECTORY, is_new=False)
    assert str(DIRECTORY) in str(raised.value)
    assert "nothing was changed" in str(raised.value)
    assert everything(files) == before


def test_a_journal_that_is_gone_is_not_begun_anew() -> None:
    files = FaultyFiles(1)
    files.make_dir(DIRECTORY)
    check_journal(files, DIRECTORY, is_new=True)
    with pytest.raises(DamagedState, match="does not read back"):
        check_journal(files, DIRECTORY, is_new=False)


async def test_a_torn_tail_is_no_damage() -> None:
    files = FaultyFiles(1)
    await written(files)
    file = files.open(DIRECTORY / f"{0:020d}.log")
    file.pwrite([b"torn" * 30], file.size())
    check_journal(files, DIRECTORY, is_new=False)
