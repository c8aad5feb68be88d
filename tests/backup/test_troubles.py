"""What can happen to a backup folder, and to whoever shares it: said once, never in the broker's way, and caught up."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.broker.backup.checking import check
from headrace.broker.backup.choosing import choose, cuts_of
from headrace.broker.backup.errors import BackupError, BackupOfAnother, NoSuchMoment
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.reading import DamagedPiece
from headrace.broker.backup.restoring import Restoring, RestoringReport
from headrace.broker.metrics import collect
from headrace.clock import SystemClock
from headrace.errors import ConfigError, DataDirError
from headrace.files import Buffer, SystemFile
from tests.backup.test_moments import restored
from tests.backup.workload import UnsyncedFile, UnsyncedFiles, World, committed, difference


async def shop(home: Path, steps: int = 30, **settings: object) -> World:
    world = World(home, 7, **settings)
    await world.start()
    await world.prepare()
    for _ in range(steps):
        await world.step()
    assert await world.round()
    return world


async def done(restoring: Restoring) -> RestoringReport:
    return await asyncio.to_thread(restoring.run)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


async def test_a_folder_that_goes_away_and_comes_back_is_said_once_and_caught_up_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = await shop(tmp_path)
    world.folder.rename(tmp_path / "away")
    with caplog.at_level(logging.INFO, "headrace.broker"):
        for present in (False, True, False):
            # Also where the mount is away and its empty directory shows.
            if present:
                world.folder.mkdir()
            for _ in range(3):
                await world.step()
            assert not await world.round()
            if present:
                assert list(world.folder.iterdir()) == []
                world.folder.rmdir()
        assert "headrace_backup_in_trouble 1" in (await collect(world.ask.broker, None)).decode()
        (tmp_path / "away").rename(world.folder)
        assert await world.round()
    said = [one.getMessage() for one in caplog.records if "backup" in one.getMessage()]
    assert [("does not go on" in one, "has caught up" in one) for one in said] == [
        (True, False),
        (False, True),
    ]
    assert world.ask.broker.backup is not None
    assert world.ask.broker.backup.behind_records() == 0
    other = await restored(world, tmp_path / "restored")
    assert difference(other.ask.broker, world.model) is None
    await other.stop()
    await world.stop()


async def test_a_broker_whose_known_folder_is_away_starts_and_one_that_never_had_it_does_not(
    tmp_path: Path,
) -> None:
    world = await shop(tmp_path)
    await world.stop()
    world.folder.rename(tmp_path / "away")
    world.folder.mkdir()
    await world.start()
    assert not await world.round()
    assert list(world.folder.iterdir()) == []
    await world.stop()
    stranger = World(tmp_path / "stranger", 1)
    stranger.settings["backup_dir"] = tmp_path / "nowhere"
    with pytest.raises(ConfigError, match="nowhere"):
        await stranger.start()
    stranger.settings["backup_dir"] = stranger.home / "data" / "backup"
    with pytest.raises(ConfigError, match="in the data directory"):
        await stranger.start()


class FullFile(UnsyncedFile):
    __slots__ = ("files",)
    files: FullFiles

    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        if self.files.room == 0 and "backup" in self.path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if "backup" in self.path.parts and self.files.room is not None:
            taken = super().pwrite([memoryview(data[0])[: self.files.room]], position)
            self.files.room -= taken
            return taken
        return super().pwrite(data, position)


class FullFiles(UnsyncedFiles):
    room: int | None = None

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        found = FullFile(super().open(path, create=create).descriptor, path)
        found.files = self
        return found


async def test_a_full_disk_leaves_the_moment_before_and_no_half_piece(tmp_path: Path) -> None:
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


async def test_two_brokers_on_one_folder_are_refused_with_both_names(tmp_path: Path) -> None:
    world = await shop(tmp_path)
    ours = world.ask.broker.identity
    other = World(tmp_path / "other", 1)
    other.settings["backup_dir"] = world.folder
    with pytest.raises(BackupOfAnother) as refused:
        await other.start()
    assert ours.cluster_id in refused.value.message
    assert refused.value.message.count("data directory") == 2
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data", copy)
    await world.stop()
    await world.start()
    # The copy has counted as many starts by now as the manifest tells of.
    with pytest.raises(BackupOfAnother, match=r"start 2 .*this is start 2"):
        await World(tmp_path / "x", 1, backup_dir=world.folder).start(copy)
    await world.stop()


async def test_a_broker_that_meets_anothers_manifest_ships_nothing_more_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = await shop(tmp_path)
    folder = BackupFolder(world.folder)
    newest = folder.names()[-1]
    shutil.copy(
        folder.manifests / newest.file,
        folder.manifests / newest._replace(sequence=newest.sequence + 1, run="deadbeef").file,
    )
    await world.step()
    assert not await world.round()
    backup = world.ask.broker.backup
    assert backup is not None
    assert backup.standing.refused is not None
    assert {"deadbeef", backup.run} <= set(backup.standing.refused.replace(",", "").split())
    assert "nothing more is backed up" in caplog.text
    await world.stop()


async def test_a_restored_log_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    world = await shop(tmp_path)
    await world.stop()
    other = await restored(world, tmp_path / "restored")
    await other.stop()
    other.settings = {"backup_dir": world.folder}
    with pytest.raises(BackupOfAnother, match="restored"):
        await other.start(tmp_path / "restored")
    other.settings = {"backup_dir": other.folder, "backup_every_s": 3600.0}
    await other.start(tmp_path / "restored")
    await other.stop()
    (told,) = choose(BackupFolder(other.folder)).restored
    assert told.manifest.endswith(".json")


async def test_a_damaged_piece_is_named_with_what_can_be_restored_without_it(tmp_path: Path) -> None:
    world = await shop(tmp_path, 60)
    good = choose(BackupFolder(world.folder)).sequence
    for _ in range(40):
        await world.plain()
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    place = newest.place("events", 0)
    assert place is not None
    older = {file for part in choose(folder, to=str(good)).parts.values() for file in part.files()}
    run = next(
        one
        for one in reversed(newest.parts[place].segments)
        if one.pieces and one.pieces[-1].file not in older
    )
    flip(folder.piece(place, run.pieces[-1].file), 30)
    report = check(folder, newest)
    assert [one.label for one in report.damaged] == ["events-0"]
    assert report.damaged[0].whole_to is not None
    assert report.whole is not None
    assert good <= report.whole.sequence < newest.sequence
    with pytest.raises(DamagedPiece, match="events-0 is damaged: its checksum is") as refused:
        await done(Restoring(folder, tmp_path / "r1", newest, {}, clock=SystemClock(), files=UnsyncedFiles()))
    whole_to = refused.value.whole_to
    assert whole_to == report.damaged[0].whole_to
    assert f"--offsets events:0:{whole_to}" in refused.value.hint
    cuts = cuts_of(newest, {("events", 0): whole_to or 0})
    report_two = await done(
        Restoring(folder, tmp_path / "r2", newest, cuts, clock=SystemClock(), files=UnsyncedFiles())
    )
    assert report_two.ends[place] == whole_to
    folder.piece(place, run.pieces[-1].file).unlink()
    assert "not there" in check(folder, newest).damaged[0].message


async def test_a_partition_ends_where_it_was_told_to_and_its_group_goes_back(tmp_path: Path) -> None:
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
            cuts_of(newest, {wrong[:2]: wrong[2]})
    cuts = cuts_of(newest, {("events", 0): 17})
    report = await done(
        Restoring(folder, tmp_path / "r", newest, cuts, clock=SystemClock(), files=UnsyncedFiles())
    )
    assert [row[1:] for row in report.set_back] == [("events", 0, 25, 17)]
    other = World(tmp_path / "w", 0)
    other.settings = {}
    await other.start(tmp_path / "r")
    assert [len(committed(other.ask.broker, ("events", index))) for index in range(2)] == [17, 30]
    rows = other.ask.broker.groups.fetch_all("readers")["events"]
    assert {index: row.offset for index, row in rows.items()} == {0: 17, 1: 25}
    assert await other.send(("events", 0), (b"k", b"next")) == 17
    await other.stop()


class _Interrupted(Exception):
    pass


async def test_a_restore_goes_on_where_it_was_interrupted_and_takes_no_directory_that_holds_something(
    tmp_path: Path,
) -> None:
    world = await shop(tmp_path, 50)
    await world.stop()
    folder, data = BackupFolder(world.folder), tmp_path / "restored"
    newest = choose(folder)
    moved: list[int] = []

    def restoring(limit: int | None, into: Path = data, **changed: int) -> Restoring:
        def count(size: int) -> None:
            moved.append(size)
            if limit is not None and len(moved) > limit:
                raise _Interrupted

        return Restoring(
            folder, into, newest, changed, clock=SystemClock(), files=UnsyncedFiles(), moved=count
        )

    for limit in (1, 2, 3, 4):
        moved.clear()
        with pytest.raises(_Interrupted):
            await done(restoring(limit))
        with pytest.raises(DataDirError, match=r"no headrace\.json"):
            await World(tmp_path / "y", 0, backup_dir=None).start(data)
    with pytest.raises(BackupError, match="not finished"):
        await done(restoring(None, metadata=1))
    moved.clear()
    await done(restoring(None))
    whole = len(moved)
    moved.clear()
    await done(restoring(None, tmp_path / "again"))
    assert whole < len(moved), "what was there is not read again"
    other = World(tmp_path / "w", 0)
    other.settings = {}
    await other.start(data)
    assert difference(other.ask.broker, world.model) is None
    await other.stop()
    with pytest.raises(DataDirError, match="not empty"):
        await done(restoring(None))


async def test_what_the_brokers_own_disk_has_damaged_never_replaces_a_good_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, 1)
    await world.start()
    topic = await world.ask.create("events", 1)
    partition = world.ask.broker.partition("events", 0)
    assert partition is not None
    for number in range(5):
        await world.send(("events", 0), (b"k", b"%d" % number))
        assert await world.round()
    flip(partition.log.active.path, 65)
    for number in range(5, 9):
        await world.send(("events", 0), (b"k", b"%d" % number))
        assert await world.round()
    assert "are not what they were when they were copied" in caplog.text
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    assert not check(folder, newest).damaged
    assert newest.parts[f"{topic.id.hex()}/0"].end == 7
    await world.stop()


async def test_a_moment_that_there_is_not_is_refused(tmp_path: Path) -> None:
    world = await shop(tmp_path, 5)
    await world.stop()
    folder = BackupFolder(world.folder)
    first = folder.load(folder.names()[0])
    assert choose(folder, at_ms=first.taken_ms).sequence >= first.sequence
    with pytest.raises(NoSuchMoment, match="before it"):
        choose(folder, at_ms=first.taken_ms - 1)
    with pytest.raises(NoSuchMoment, match="999"):
        choose(folder, to="999")
    with pytest.raises(NoSuchMoment, match="no backup"):
        choose(BackupFolder(tmp_path))
    newest = folder.names()[-1]
    flip(folder.manifests / newest.file, 40)
    assert choose(folder).sequence < newest.sequence
