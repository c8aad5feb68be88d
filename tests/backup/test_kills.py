"""A backup that ends at any of its operations in the folder, as a kill ends it: the next start goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.broker.backup.checking import check
from headrace.broker.backup.choosing import choose
from headrace.broker.backup.folder import BackupFolder
from headrace.files import Buffer, SystemFile
from tests.backup.test_moments import restored
from tests.backup.workload import UnsyncedFile, UnsyncedFiles, World, difference


class Killed(BaseException):
    """Nothing that the code could handle: whoever is killed handles nothing."""


class MortalFile(UnsyncedFile):
    __slots__ = ("files",)
    files: MortalFiles

    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        self.files.operate(self.path)
        return super().pwrite(data, position)

    def sync(self) -> None:
        self.files.operate(self.path)


class MortalFiles(UnsyncedFiles):
    """``left`` operations in the backup's folder are done, and none behind them."""

    left: int | None = None

    def operate(self, path: Path) -> None:
        if self.left is None or "backup" not in path.parts:
            return
        if self.left <= 0:
            raise Killed
        self.left -= 1

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        if create:
            self.operate(path)
        found = MortalFile(super().open(path, create=create).descriptor, path)
        found.files = self
        return found

    def rename(self, old: Path, new: Path) -> None:
        self.operate(new)
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self.operate(path)
        super().remove(path)

    def make_dir(self, directory: Path) -> None:
        self.operate(directory)
        super().make_dir(directory)

    def sync_dir(self, directory: Path) -> None:
        self.operate(directory)


async def test_killed_at_any_operation_every_moment_is_whole_and_the_next_start_goes_on(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 9, backup_keep_ms=0)
    world.files = files = MortalFiles()
    await world.start()
    await world.prepare()
    folder = BackupFolder(world.folder)
    kills, passed = 0, False
    while not passed:
        for _ in range(8):
            await world.step()
        newest = choose(folder).sequence
        files.left = kills
        try:
            passed = await world.round()
        except Killed:
            kills += 1
        files.left = None
        names = folder.names()
        assert names[-1].sequence >= newest
        for name in names[-3:]:
            assert not check(folder, folder.load(name, names)).damaged
        keeper = world.ask.broker.backup
        assert keeper is not None
        # Whoever is killed ships no rest.
        keeper.standing.trouble = "killed"
        await world.stop()
        await world.start()
        assert not list(world.folder.rglob("*.new")), "what was left half is removed"
    assert kills > 15
    other = await restored(world, tmp_path / "restored")
    assert difference(other.ask.broker, world.model) is None
    await other.stop()
    await world.stop()


@pytest.mark.parametrize("away", ["while it is down", "while it runs"])
async def test_what_somebody_removed_or_cut_in_the_folder_is_shipped_again(
    tmp_path: Path, away: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, 4)
    await world.start()
    await world.prepare()
    for _ in range(40):
        await world.step()
    assert await world.round()
    if away == "while it is down":
        await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    place = newest.place("events", 1)
    assert place is not None
    pieces = [piece.file for run in newest.parts[place].segments for piece in run.pieces]
    folder.piece(place, pieces[0]).unlink()
    cut = folder.piece("groups", newest.parts["groups"].segments[-1].pieces[0].file)
    cut.write_bytes(cut.read_bytes()[:-1])
    assert len(check(folder, newest).damaged) == 2
    if away == "while it is down":
        await world.start()
    else:
        # A mount that was away may come back as it was long ago.
        world.folder.rename(tmp_path / "away")
        assert not await world.round()
        (tmp_path / "away").rename(world.folder)
        assert await world.round()
    assert "are not in" in caplog.text
    assert not check(folder, choose(folder)).damaged
    other = await restored(world, tmp_path / "restored")
    assert difference(other.ask.broker, world.model) is None
    await other.stop()
    await world.stop()
