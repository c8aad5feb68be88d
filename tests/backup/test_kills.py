"""A backup that is killed at any of its operations in the folder: the next start continues from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.restore_points import check, choose
from headrace.files import Buffer, SystemFile
from tests.backup.test_restore_points import restored
from tests.backup.workload import UnsyncedFile, UnsyncedFiles, World, difference


class Killed(BaseException):
    """Stands for SIGKILL. It is a BaseException, so that the code under test does not handle it."""


class KillableFile(UnsyncedFile):
    __slots__ = ("files",)
    files: KillableFiles

    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        self.files.operate(self.path)
        return super().pwrite(data, position)

    def sync(self) -> None:
        self.files.operate(self.path)


class KillableFiles(UnsyncedFiles):
    """Files that allow ``left`` operations in the backup folder and then raise ``Killed``."""

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
        file = KillableFile(super().open(path, create=create).descriptor, path)
        file.files = self
        return file

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


async def test_after_a_kill_at_any_operation_all_restore_points_are_intact_and_the_backup_continues(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 9, backup_keep_ms=0)
    world.files = files = KillableFiles()
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
        backup = world.call.broker.backup
        assert backup is not None
        # A killed broker does not copy the remaining bytes at its stop.
        backup.status.error = "killed"
        await world.stop()
        await world.start()
        assert not list(world.folder.rglob("*.new")), "incomplete files were not removed"
    assert kills > 15
    other = await restored(world, tmp_path / "restored")
    assert difference(other.call.broker, world.model) is None
    await other.stop()
    await world.stop()


@pytest.mark.parametrize("away", ["while it is down", "while it runs"])
async def test_files_that_were_removed_or_truncated_in_the_folder_are_copied_again(
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
    log_id = newest.log_id("events", 1)
    assert log_id is not None
    pieces = [piece.file for run in newest.parts[log_id].segments for piece in run.pieces]
    folder.piece(log_id, pieces[0]).unlink()
    cut = folder.piece("groups", newest.parts["groups"].segments[-1].pieces[0].file)
    cut.write_bytes(cut.read_bytes()[:-1])
    assert len(check(folder, newest).damaged) == 2
    if away == "while it is down":
        await world.start()
    else:
        # A mount that was unavailable may come back with older contents.
        world.folder.rename(tmp_path / "away")
        assert not await world.round()
        (tmp_path / "away").rename(world.folder)
        assert await world.round()
    assert "are missing or truncated in" in caplog.text
    assert not check(folder, choose(folder)).damaged
    other = await restored(world, tmp_path / "restored")
    assert difference(other.call.broker, world.model) is None
    await other.stop()
    await world.stop()
