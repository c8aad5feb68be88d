"""Failures of a backup folder, and of brokers that share it: logged once, recovered, without delaying the broker."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.broker.backup.errors import BackupError, BackupOwnedByOther, NoSuchRestorePoint
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.pieces import DamagedPiece
from headrace.broker.backup.restore import Restore, RestoreReport
from headrace.broker.backup.restore_points import check, choose, chosen_ends_of
from headrace.broker.metrics.collector import collect
from headrace.clock import SystemClock
from headrace.errors import ConfigError, DataDirError
from headrace.files import Buffer, SystemFile
from tests.backup.test_restore_points import restored
from tests.backup.workload import UnsyncedFile, UnsyncedFiles, World, committed, difference


async def world_with_records(home: Path, steps: int = 30, **settings: object) -> World:
    world = World(home, 7, **settings)
    await world.start()
    await world.prepare()
    for _ in range(steps):
        await world.step()
    assert await world.round()
    return world


async def done(restoring: Restore) -> RestoreReport:
    return await asyncio.to_thread(restoring.run)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


async def test_an_unavailable_folder_is_logged_once_and_the_backup_catches_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = await world_with_records(tmp_path)
    world.folder.rename(tmp_path / "away")
    with caplog.at_level(logging.INFO, "headrace.broker"):
        for present in (False, True, False):
            # Test both cases: the folder is missing, or it is the empty directory of a missing mount.
            if present:
                world.folder.mkdir()
            for _ in range(3):
                await world.step()
            assert not await world.round()
            if present:
                assert list(world.folder.iterdir()) == []
                world.folder.rmdir()
        assert "headrace_backup_failing 1" in (await collect(world.call.broker, None)).decode()
        (tmp_path / "away").rename(world.folder)
        assert await world.round()
    messages = [record.getMessage() for record in caplog.records if "backup" in record.getMessage()]
    assert [("cannot write the backup" in message, "is up to date" in message) for message in messages] == [
        (True, False),
        (False, True),
    ]
    assert world.call.broker.backup is not None
    assert world.call.broker.backup.behind_records() == 0
    other = await restored(world, tmp_path / "restored")
    assert difference(other.call.broker, world.model) is None
    await other.stop()
    await world.stop()


async def test_a_broker_starts_if_its_known_backup_folder_is_missing_but_not_with_a_missing_new_folder(
    tmp_path: Path,
) -> None:
    world = await world_with_records(tmp_path)
    await world.stop()
    world.folder.rename(tmp_path / "away")
    world.folder.mkdir()
    await world.start()
    assert not await world.round()
    assert list(world.folder.iterdir()) == []
    await world.stop()
    other_broker = World(tmp_path / "stranger", 1)
    other_broker.settings["backup_dir"] = tmp_path / "nowhere"
    with pytest.raises(ConfigError, match="nowhere"):
        await other_broker.start()
    other_broker.settings["backup_dir"] = other_broker.home / "data" / "backup"
    with pytest.raises(ConfigError, match="inside the data directory"):
        await other_broker.start()


class FullFile(UnsyncedFile):
    __slots__ = ("files",)
    files: FullFiles

    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        if self.files.room == 0 and "backup" in self.path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if "backup" in self.path.parts and self.files.room is not None:
            written = super().pwrite([memoryview(data[0])[: self.files.room]], position)
            self.files.room -= written
            return written
        return super().pwrite(data, position)


class FullFiles(UnsyncedFiles):
    room: int | None = None

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        file = FullFile(super().open(path, create=create).descriptor, path)
        file.files = self
        return file


async def test_a_full_disk_leaves_the_last_restore_point_and_no_partial_piece(tmp_path: Path) -> None:
    files = FullFiles()
    world = World(tmp_path, 3)
    world.files = files
    await world.start()
    await world.prepare()
    for room in (0, 100, 700, 1500):
        before = choose(BackupFolder(world.folder)).sequence
        for _ in range(12):
            await world.step()
        files.room = room
        assert not await world.round()
        assert choose(BackupFolder(world.folder)).sequence == before
        assert not list(world.folder.rglob("*.new"))
        files.room = None
        assert await world.round()
    await world.stop()
    assert not check(BackupFolder(world.folder), choose(BackupFolder(world.folder))).damaged


async def test_a_second_broker_with_the_same_backup_folder_is_refused_and_the_error_names_both(
    tmp_path: Path,
) -> None:
    world = await world_with_records(tmp_path)
    identity = world.call.broker.identity
    other = World(tmp_path / "other", 1)
    other.settings["backup_dir"] = world.folder
    with pytest.raises(BackupOwnedByOther) as refused:
        await other.start()
    assert identity.cluster_id in refused.value.message
    assert refused.value.message.count("data directory") == 2
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data", copy)
    await world.stop()
    await world.start()
    # The copied data directory now reaches the same start number as the manifest.
    with pytest.raises(BackupOwnedByOther, match=r"start 2 .*this is start 2"):
        await World(tmp_path / "x", 1, backup_dir=world.folder).start(copy)
    await world.stop()


async def test_a_broker_that_finds_a_manifest_of_another_writer_stops_its_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = await world_with_records(tmp_path)
    folder = BackupFolder(world.folder)
    newest = folder.names()[-1]
    shutil.copy(
        folder.manifests / newest.file,
        folder.manifests / newest._replace(sequence=newest.sequence + 1, run="deadbeef").file,
    )
    await world.step()
    assert not await world.round()
    backup = world.call.broker.backup
    assert backup is not None
    assert backup.status.refused is not None
    assert {"deadbeef", backup.run} <= set(backup.status.refused.replace(",", "").split())
    assert "the backup is stopped until the next start" in caplog.text
    await world.stop()


async def test_a_restored_log_needs_a_new_backup_folder(tmp_path: Path) -> None:
    world = await world_with_records(tmp_path)
    await world.stop()
    other = await restored(world, tmp_path / "restored")
    await other.stop()
    other.settings = {"backup_dir": world.folder}
    with pytest.raises(BackupOwnedByOther, match="restored"):
        await other.start(tmp_path / "restored")
    other.settings = {"backup_dir": other.folder, "backup_every_s": 3600.0}
    await other.start(tmp_path / "restored")
    await other.stop()
    (restore,) = choose(BackupFolder(other.folder)).restored
    assert restore.manifest.endswith(".json")


async def test_the_error_for_a_damaged_piece_says_what_can_be_restored_without_it(tmp_path: Path) -> None:
    world = await world_with_records(tmp_path, 60)
    good = choose(BackupFolder(world.folder)).sequence
    for _ in range(40):
        await world.send_record()
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    log_id = newest.log_id("events", 0)
    assert log_id is not None
    older = {file for part in choose(folder, to=str(good)).parts.values() for file in part.files()}
    run = next(
        segment
        for segment in reversed(newest.parts[log_id].segments)
        if segment.pieces and segment.pieces[-1].file not in older
    )
    flip(folder.piece(log_id, run.pieces[-1].file), 30)
    report = check(folder, newest)
    assert [segment.label for segment in report.damaged] == ["events-0"]
    assert report.damaged[0].intact_to is not None
    assert report.intact is not None
    assert good <= report.intact.sequence < newest.sequence
    with pytest.raises(DamagedPiece, match="events-0 is damaged: the checksum is") as refused:
        await done(Restore(folder, tmp_path / "r1", newest, {}, clock=SystemClock(), files=UnsyncedFiles()))
    intact_to = refused.value.intact_to
    assert intact_to == report.damaged[0].intact_to
    assert f"--offsets events:0:{intact_to}" in refused.value.hint
    chosen_ends = chosen_ends_of(newest, {("events", 0): intact_to or 0})
    report_two = await done(
        Restore(folder, tmp_path / "r2", newest, chosen_ends, clock=SystemClock(), files=UnsyncedFiles())
    )
    assert report_two.ends[log_id] == intact_to
    folder.piece(log_id, run.pieces[-1].file).unlink()
    assert "does not exist" in check(folder, newest).damaged[0].message


async def test_a_partition_and_its_committed_offsets_end_at_the_chosen_offset(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 5)
    await world.start()
    await world.prepare()
    for number in range(30):
        await world.send(("events", 0), (b"k", b"%d" % number))
        await world.send(("events", 1), (b"k", b"%d" % number))
    await world._commit(("events", 0), 25)
    await world._commit(("events", 1), 25)
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    for wrong in (("events", 0, 31), ("events", 7, 1), ("nothing", 0, 1)):
        with pytest.raises(BackupError):
            chosen_ends_of(newest, {wrong[:2]: wrong[2]})
    chosen_ends = chosen_ends_of(newest, {("events", 0): 17})
    report = await done(
        Restore(folder, tmp_path / "r", newest, chosen_ends, clock=SystemClock(), files=UnsyncedFiles())
    )
    assert [row[1:] for row in report.reduced_offsets] == [("events", 0, 25, 17)]
    other = World(tmp_path / "w", 0)
    other.settings = {}
    await other.start(tmp_path / "r")
    assert [len(committed(other.call.broker, ("events", index))) for index in range(2)] == [17, 30]
    rows = other.call.broker.groups.fetch_all("readers")["events"]
    assert {index: row.offset for index, row in rows.items()} == {0: 17, 1: 25}
    assert await other.send(("events", 0), (b"k", b"next")) == 17
    await other.stop()


class _Interrupted(Exception):
    pass


async def test_a_restore_continues_after_an_interruption_and_refuses_a_directory_with_other_files(
    tmp_path: Path,
) -> None:
    world = await world_with_records(tmp_path, 50)
    await world.stop()
    folder, data = BackupFolder(world.folder), tmp_path / "restored"
    newest = choose(folder)
    moved: list[int] = []

    def restoring(limit: int | None, into: Path = data, **changed: int) -> Restore:
        def count(size: int) -> None:
            moved.append(size)
            if limit is not None and len(moved) > limit:
                raise _Interrupted

        return Restore(
            folder, into, newest, changed, clock=SystemClock(), files=UnsyncedFiles(), on_read=count
        )

    for limit in (1, 2, 3, 4):
        moved.clear()
        with pytest.raises(_Interrupted):
            await done(restoring(limit))
        with pytest.raises(DataDirError, match=r"no headrace\.json"):
            await World(tmp_path / "y", 0, backup_dir=None).start(data)
    with pytest.raises(BackupError, match="incomplete restore"):
        await done(restoring(None, metadata=1))
    moved.clear()
    await done(restoring(None))
    moved_when_resumed = len(moved)
    moved.clear()
    await done(restoring(None, tmp_path / "again"))
    assert moved_when_resumed < len(moved), "the copied files were read again"
    other = World(tmp_path / "w", 0)
    other.settings = {}
    await other.start(data)
    assert difference(other.call.broker, world.model) is None
    await other.stop()
    with pytest.raises(DataDirError, match="not empty"):
        await done(restoring(None))


async def test_damage_on_the_brokers_disk_never_replaces_an_intact_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, 1)
    await world.start()
    topic = await world.call.create("events", 1)
    partition = world.call.broker.partition("events", 0)
    assert partition is not None
    for number in range(5):
        await world.send(("events", 0), (b"k", b"%d" % number))
        assert await world.round()
    flip(partition.log.active.path, 65)
    for number in range(5, 9):
        await world.send(("events", 0), (b"k", b"%d" % number))
        assert await world.round()
    assert "have changed since they were copied" in caplog.text
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    assert not check(folder, newest).damaged
    assert newest.parts[f"{topic.id.hex()}/0"].end == 7
    await world.stop()


async def test_a_missing_restore_point_is_an_error(tmp_path: Path) -> None:
    world = await world_with_records(tmp_path, 5)
    await world.stop()
    folder = BackupFolder(world.folder)
    first = folder.load(folder.names()[0])
    assert choose(folder, at_ms=first.taken_ms).sequence >= first.sequence
    with pytest.raises(NoSuchRestorePoint, match="the first restore point"):
        choose(folder, at_ms=first.taken_ms - 1)
    with pytest.raises(NoSuchRestorePoint, match="999"):
        choose(folder, to="999")
    with pytest.raises(NoSuchRestorePoint, match="has no backup"):
        choose(BackupFolder(tmp_path))
    newest = folder.names()[-1]
    flip(folder.manifests / newest.file, 40)
    assert choose(folder).sequence < newest.sequence
