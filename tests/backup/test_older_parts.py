"""What a moment says where it could not have everything: a partition that cannot be read, an archive, a folder that
hangs, a moment that goes while it is restored.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.backup import keeper as keeping
from headrace.broker.backup.checking import check
from headrace.broker.backup.choosing import choose
from headrace.broker.backup.errors import NoSuchMoment
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.reading import DamagedPiece
from headrace.broker.backup.restoring import Restoring
from headrace.broker.metrics import collect
from headrace.clock import SystemClock
from headrace.errors import DataDirError
from headrace.files import SystemFile
from tests.backup.test_troubles import done, flip, shop
from tests.backup.workload import GROUP, UnsyncedFile, UnsyncedFiles, World, committed


def restoring(folder: BackupFolder, data: Path, **how: Any) -> Restoring:
    return Restoring(folder, data, choose(folder), {}, clock=SystemClock(), files=UnsyncedFiles(), **how)


async def opened(data: Path, **settings: Any) -> World:
    other = World(data.parent / f"{data.name}-world", 0)
    other.settings = settings
    await other.start(data)
    return other


async def archiving(home: Path) -> tuple[World, Path, tuple[str, int]]:
    """A broker that moves what it keeps too much of, where to, and a partition of it."""
    archive = home / "archive"
    archive.mkdir()
    world = World(home, 1, archive_dir=archive)
    await world.start()
    await world.ask.create(
        "events", 1, internal_segment_bytes="500", retention_bytes="1000", headrace_archive_enable="true"
    )
    return world, archive, ("events", 0)


async def test_a_partition_that_cannot_be_read_is_named_as_older_and_its_group_goes_back(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 1)
    await world.start()
    topic = await world.ask.create("events", 2)
    for number in range(5):
        await world.send(("events", 0), (b"k", b"%d" % number))
        await world.send(("events", 1), (b"k", b"%d" % number))
        assert await world.round()
    partition = world.ask.broker.partition("events", 0)
    assert partition is not None
    flip(partition.log.active.path, 65)
    for number in range(5, 12):
        await world.send(("events", 0), (b"k", b"%d" % number))
        await world.send(("events", 1), (b"k", b"%d" % number))
        await world._commit(("events", 0), number + 1)
        assert await world.round()
    page = (await collect(world.ask.broker, None)).decode()
    assert "headrace_backup_unreadable_partitions 1" in page
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    place = f"{topic.id.hex()}/0"
    assert newest.stale == (place,)
    report = await done(restoring(folder, tmp_path / "restored"))
    end = newest.parts[place].end
    assert end < 12
    assert [row[1:] for row in report.set_back] == [("events", 0, 12, end)]
    assert report.stale == [
        f"events-0 ends at {end}, which is older than the moment: transactions that lie across are cut in two"
    ]


async def test_no_moment_is_taken_where_a_journal_cannot_be_read(tmp_path: Path) -> None:
    world = await shop(tmp_path)
    folder = BackupFolder(world.folder)
    newest = choose(folder).sequence
    _, groups = world.ask.broker.journals
    flip(groups.log.active.path, 70)
    while await world.round():
        # Until the pieces are joined, nobody reads what was copied already.
        newest = choose(folder).sequence
        await world._commit(("events", 0), 0)
    keeper = world.ask.broker.backup
    assert keeper is not None
    assert "are not what they were" in (keeper.standing.trouble or "")
    await world.plain()
    assert not await world.round()
    assert choose(folder).sequence == newest
    assert not check(folder, choose(folder)).damaged
    await world.stop()


async def test_segments_that_were_moved_to_the_archive_are_in_the_backup_and_need_no_archive_to_be_restored(
    tmp_path: Path,
) -> None:
    world, archive, place = await archiving(tmp_path)
    for number in range(80):
        await world.send(place, (b"k", b"%d" % number))
        if number == 20:
            # Some of it was copied before it was moved, and some has to be read from the archive.
            assert await world.round()
    await world.ask.broker.archiver.run()
    partition = world.ask.broker.partition(*place)
    assert partition is not None
    assert len(partition.log.archive.entries) > 3
    assert await world.round()
    await world.send(place, (b"k", b"last"))
    assert await world.round()
    folder = BackupFolder(world.folder)
    assert choose(folder).archived() == {}
    await world.stop()
    archive.rename(tmp_path / "away")
    assert (await done(restoring(folder, tmp_path / "restored"))).archived == []
    other = await opened(tmp_path / "restored")
    found = committed(other.ask.broker, place)
    assert [value for _, (_, value) in sorted(found.items())] == [*(b"%d" % n for n in range(80)), b"last"]
    await other.stop()


async def test_an_archive_that_is_away_is_named_and_shipped_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, archive, place = await archiving(tmp_path)
    for number in range(80):
        await world.send(place, (b"k", b"%d" % number))
    await world.ask.broker.archiver.run()
    archive.rename(tmp_path / "away")
    assert await world.round()
    folder = BackupFolder(world.folder)
    (size,) = choose(folder).archived().values()
    assert size > 1500
    assert caplog.text.count("it lies in the archive only") == 1
    report = await done(restoring(folder, tmp_path / "early"))
    assert [one.startswith(f"{size} bytes of events-0") for one in report.archived] == [True]
    (tmp_path / "away").rename(archive)
    early = await opened(tmp_path / "early", archive_dir=archive)
    assert len(committed(early.ask.broker, place)) == 80, "with the archive, all of it can be read"
    await early.stop()
    await world.send(place, (b"k", b"last"))
    assert await world.round()
    assert choose(folder).archived() == {}
    await world.stop()


async def archived_topics(home: Path, *names: str) -> tuple[World, Path]:
    """A broker with topics whose old segments are in the archive and in no backup."""
    world, archive, _ = await archiving(home)
    for name in names:
        await world.ask.create(
            name, 1, internal_segment_bytes="500", retention_bytes="1000", headrace_archive_enable="true"
        )
        for number in range(30):
            await world.send((name, 0), (b"k", b"%d" % number))
    await world.ask.broker.archiver.run()
    return world, archive


async def test_a_partition_at_rest_is_shipped_when_the_archive_is_back(tmp_path: Path) -> None:
    world, archive = await archived_topics(tmp_path, "orders")
    archive.rename(tmp_path / "away")
    assert await world.round()
    folder = BackupFolder(world.folder)
    assert choose(folder).archived()
    (tmp_path / "away").rename(archive)
    assert await world.round()
    assert choose(folder).archived() == {}
    await world.stop()


async def test_a_file_that_is_missing_in_the_archive_keeps_no_other_partition_from_its_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, _ = await archived_topics(tmp_path, "orders", "payments")
    partition = world.ask.broker.partition("orders", 0)
    assert partition is not None
    missing = Path(partition.log.archive.segments[-1].path)
    missing.unlink()
    assert await world.round()
    place = f"{missing.parent.parent.name}/0"
    assert set(choose(BackupFolder(world.folder)).archived()) == {place}
    (said,) = [one for one in caplog.messages if "it lies in the archive only" in one]
    assert str(missing) in said
    await world.stop()


class HangingFile(UnsyncedFile):
    __slots__ = ("files",)
    files: HangingFiles

    def sync(self) -> None:
        if "backup" in self.path.parts:
            self.files.asked.set()
            self.files.answers.wait(30)


class HangingFiles(UnsyncedFiles):
    """A mount that does not answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        found = HangingFile(super().open(path, create=create).descriptor, path)
        found.files = self
        return found


async def test_a_folder_that_hangs_keeps_neither_producers_nor_the_stop_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeping, "_LAST_ROUND_S", 0.05)
    monkeypatch.setattr(keeping, "_SLOW_S", 0.0)
    world = World(tmp_path, 3)
    world.files = files = HangingFiles()
    await world.start()
    await world.prepare()
    files.answers.clear()
    await world.plain()
    files.asked.clear()
    keeper = world.ask.broker.backup
    assert keeper is not None
    hanging = asyncio.create_task(world.round())
    assert await asyncio.to_thread(files.asked.wait, 30)
    for _ in range(30):
        await world.step()
    assert not hanging.done()
    assert keeper.behind_records() > 0
    assert keeper.under_way_s() > 0
    assert "has taken more than" in caplog.text
    hanging.cancel()
    await asyncio.wait([hanging])
    keeper.standing.trouble = None
    await world.stop()
    files.answers.set()


async def test_a_moment_that_goes_while_it_is_restored_is_said_to_be_gone_and_not_damaged(
    tmp_path: Path,
) -> None:
    world = await shop(tmp_path, 40)
    await world._commit(("events", 0), 0)
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    assert newest.base is not None
    assert (folder.manifests / newest.name.file).exists(), (
        "a moment that is told on top of another has its own name"
    )

    def gone(size: int) -> None:
        for one in world.folder.rglob("*.piece"):
            one.unlink()
        for one in folder.manifests.iterdir():
            one.unlink()

    with pytest.raises(NoSuchMoment, match=f"moment {newest.sequence} is not kept any more"):
        await done(restoring(folder, tmp_path / "restored", moved=gone))


async def test_a_damaged_state_is_named_for_what_it_is(tmp_path: Path) -> None:
    world = await shop(tmp_path, 60)
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    place, state = next(
        (place, part.state) for place, part in newest.parts.items() if "/" in place and part.state is not None
    )
    flip(folder.piece(place, state.file), 12)
    with pytest.raises(DamagedPiece, match=r"\.state of .* is damaged: its checksum") as refused:
        await done(restoring(folder, tmp_path / "restored"))
    assert "tells of producers" in (refused.value.detail or "")
    assert "--to takes its number" in (refused.value.hint or "")


async def test_a_restore_that_was_killed_behind_its_last_step_is_not_done_over_a_log_in_use(
    tmp_path: Path,
) -> None:
    world = await shop(tmp_path)
    await world.stop()
    folder, data = BackupFolder(world.folder), tmp_path / "restored"
    under_way: dict[str, bytes] = {}

    def noted(size: int) -> None:
        under_way["raw"] = (data / "restore.json").read_bytes()

    await done(restoring(folder, data, moved=noted))
    (data / "restore.json").write_bytes(under_way["raw"])
    identity = (data / "headrace.json").read_bytes()
    with pytest.raises(DataDirError, match="already"):
        await done(restoring(folder, data))
    assert (data / "headrace.json").read_bytes() == identity
    other = await opened(data)
    assert GROUP in {group.group_id for group in other.ask.broker.groups.list_groups()}
    await other.stop()
