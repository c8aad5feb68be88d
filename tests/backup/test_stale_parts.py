"""Restore points that cannot be complete: an unreadable partition, an unavailable archive, a backup folder that hangs,
and a restore point that is removed while it is restored.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.backup import writer
from headrace.broker.backup.errors import NoSuchRestorePoint
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.pieces import DamagedPiece
from headrace.broker.backup.restore import Restore
from headrace.broker.backup.restore_points import check, choose
from headrace.broker.metrics.collector import collect
from headrace.clock import SystemClock
from headrace.errors import DataDirError
from headrace.files import SystemFile
from tests.backup.test_failures import done, flip, world_with_records
from tests.backup.workload import GROUP, UnsyncedFile, UnsyncedFiles, World, committed


def restoring(folder: BackupFolder, data: Path, **options: Any) -> Restore:
    return Restore(folder, data, choose(folder), {}, clock=SystemClock(), files=UnsyncedFiles(), **options)


async def start_broker_on(data: Path, **settings: Any) -> World:
    other = World(data.parent / f"{data.name}-world", 0)
    other.settings = settings
    await other.start(data)
    return other


async def archiving(home: Path) -> tuple[World, Path, tuple[str, int]]:
    """Start a broker with a small topic that archives old segments; return it, the archive and the partition."""
    archive = home / "archive"
    archive.mkdir()
    world = World(home, 1, archive_dir=archive)
    await world.start()
    await world.call.create(
        "events", 1, internal_segment_bytes="500", retention_bytes="1000", headrace_archive_enable="true"
    )
    return world, archive, ("events", 0)


async def test_an_unreadable_partition_is_reported_as_stale_and_committed_offsets_are_reset_to_its_end(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 1)
    await world.start()
    topic = await world.call.create("events", 2)
    for number in range(5):
        await world.send(("events", 0), (b"k", b"%d" % number))
        await world.send(("events", 1), (b"k", b"%d" % number))
        assert await world.round()
    partition = world.call.broker.partition("events", 0)
    assert partition is not None
    flip(partition.log.active.path, 65)
    for number in range(5, 12):
        await world.send(("events", 0), (b"k", b"%d" % number))
        await world.send(("events", 1), (b"k", b"%d" % number))
        await world._commit(("events", 0), number + 1)
        assert await world.round()
    page = (await collect(world.call.broker, None)).decode()
    assert "headrace_backup_unreadable_partitions 1" in page
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    log_id = f"{topic.id.hex()}/0"
    assert newest.stale == (log_id,)
    report = await done(restoring(folder, tmp_path / "restored"))
    end = newest.parts[log_id].end
    assert end < 12
    assert [row[1:] for row in report.reduced_offsets] == [("events", 0, 12, end)]
    assert report.stale == [
        f"events-0 ends at offset {end}, before the restore point: records after this offset are missing, including"
        " records of transactions"
    ]


async def test_no_restore_point_is_written_while_a_journal_cannot_be_read(tmp_path: Path) -> None:
    world = await world_with_records(tmp_path)
    folder = BackupFolder(world.folder)
    newest = choose(folder).sequence
    _, groups = world.call.broker.journals
    flip(groups.log.active.path, 70)
    while await world.round():
        # The backup reads the copied bytes again only when it merges pieces, so it detects the damage then.
        newest = choose(folder).sequence
        await world._commit(("events", 0), 0)
    backup = world.call.broker.backup
    assert backup is not None
    assert "have changed since" in (backup.status.error or "")
    await world.send_record()
    assert not await world.round()
    assert choose(folder).sequence == newest
    assert not check(folder, choose(folder)).damaged
    await world.stop()


async def test_archived_segments_are_in_the_backup_and_can_be_restored_without_the_archive(
    tmp_path: Path,
) -> None:
    world, archive, topic_partition = await archiving(tmp_path)
    for number in range(80):
        await world.send(topic_partition, (b"k", b"%d" % number))
        if number == 20:
            # The backup copied some segments before they were moved; it must read the others from the archive.
            assert await world.round()
    await world.call.broker.archiver.run()
    partition = world.call.broker.partition(*topic_partition)
    assert partition is not None
    assert len(partition.log.archive.entries) > 3
    assert await world.round()
    await world.send(topic_partition, (b"k", b"last"))
    assert await world.round()
    folder = BackupFolder(world.folder)
    assert choose(folder).archived() == {}
    await world.stop()
    archive.rename(tmp_path / "away")
    assert (await done(restoring(folder, tmp_path / "restored"))).archived == []
    other = await start_broker_on(tmp_path / "restored")
    records = committed(other.call.broker, topic_partition)
    assert [value for _, (_, value) in sorted(records.items())] == [*(b"%d" % n for n in range(80)), b"last"]
    await other.stop()


async def test_the_backup_reports_an_unavailable_archive_and_copies_its_segments_once_it_is_available(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, archive, topic_partition = await archiving(tmp_path)
    for number in range(80):
        await world.send(topic_partition, (b"k", b"%d" % number))
    await world.call.broker.archiver.run()
    archive.rename(tmp_path / "away")
    assert await world.round()
    folder = BackupFolder(world.folder)
    (size,) = choose(folder).archived().values()
    assert size > 1500
    assert caplog.text.count("the backup is incomplete without the archive") == 1
    report = await done(restoring(folder, tmp_path / "early"))
    assert [line.startswith(f"{size} bytes of events-0") for line in report.archived] == [True]
    (tmp_path / "away").rename(archive)
    early = await start_broker_on(tmp_path / "early", archive_dir=archive)
    assert len(committed(early.call.broker, topic_partition)) == 80, (
        "with the archive, all records can be read"
    )
    await early.stop()
    await world.send(topic_partition, (b"k", b"last"))
    assert await world.round()
    assert choose(folder).archived() == {}
    await world.stop()


async def archived_topics(home: Path, *names: str) -> tuple[World, Path]:
    """A broker with topics whose old segments are in the archive but not in the backup."""
    world, archive, _ = await archiving(home)
    for name in names:
        await world.call.create(
            name, 1, internal_segment_bytes="500", retention_bytes="1000", headrace_archive_enable="true"
        )
        for number in range(30):
            await world.send((name, 0), (b"k", b"%d" % number))
    await world.call.broker.archiver.run()
    return world, archive


async def test_a_partition_without_new_records_is_backed_up_once_the_archive_is_available(
    tmp_path: Path,
) -> None:
    world, archive = await archived_topics(tmp_path, "orders")
    archive.rename(tmp_path / "away")
    assert await world.round()
    folder = BackupFolder(world.folder)
    assert choose(folder).archived()
    (tmp_path / "away").rename(archive)
    assert await world.round()
    assert choose(folder).archived() == {}
    await world.stop()


async def test_a_missing_archive_file_does_not_stop_the_backup_of_other_partitions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, _ = await archived_topics(tmp_path, "orders", "payments")
    partition = world.call.broker.partition("orders", 0)
    assert partition is not None
    missing = Path(partition.log.archive.segments[-1].path)
    missing.unlink()
    assert await world.round()
    log_id = f"{missing.parent.parent.name}/0"
    assert set(choose(BackupFolder(world.folder)).archived()) == {log_id}
    (logged,) = [
        message for message in caplog.messages if "the backup is incomplete without the archive" in message
    ]
    assert str(missing) in logged
    await world.stop()


class HangingFile(UnsyncedFile):
    __slots__ = ("files",)
    files: HangingFiles

    def sync(self) -> None:
        if "backup" in self.path.parts:
            self.files.reached.set()
            self.files.answers.wait(30)


class HangingFiles(UnsyncedFiles):
    """Files on a mount that does not respond."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.reached = threading.Event()

    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        file = HangingFile(super().open(path, create=create).descriptor, path)
        file.files = self
        return file


async def test_a_backup_folder_that_hangs_delays_neither_producers_nor_the_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "_LAST_ROUND_S", 0.05)
    monkeypatch.setattr(writer, "_SLOW_S", 0.0)
    world = World(tmp_path, 3)
    world.files = files = HangingFiles()
    await world.start()
    await world.prepare()
    files.answers.clear()
    await world.send_record()
    files.reached.clear()
    backup = world.call.broker.backup
    assert backup is not None
    hanging = asyncio.create_task(world.round())
    assert await asyncio.to_thread(files.reached.wait, 30)
    for _ in range(30):
        await world.step()
    assert not hanging.done()
    assert backup.behind_records() > 0
    assert backup.round_age_s() > 0
    assert "has taken more than" in caplog.text
    hanging.cancel()
    await asyncio.wait([hanging])
    backup.status.error = None
    await world.stop()
    files.answers.set()


async def test_a_restore_point_removed_during_its_restore_is_not_reported_as_damaged(
    tmp_path: Path,
) -> None:
    world = await world_with_records(tmp_path, 40)
    await world._commit(("events", 0), 0)
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    assert newest.base is not None
    assert (folder.manifests / newest.name.file).exists(), "a manifest with a base has its own name"

    def remove_newest(size: int) -> None:
        for piece in world.folder.rglob("*.piece"):
            piece.unlink()
        for piece in folder.manifests.iterdir():
            piece.unlink()

    with pytest.raises(NoSuchRestorePoint, match=f"removed restore point {newest.sequence}"):
        await done(restoring(folder, tmp_path / "restored", on_read=remove_newest))


async def test_a_damaged_state_file_is_reported_with_its_kind(tmp_path: Path) -> None:
    world = await world_with_records(tmp_path, 60)
    await world.stop()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    log_id, state = next(
        (log_id, part.state)
        for log_id, part in newest.parts.items()
        if "/" in log_id and part.state is not None
    )
    flip(folder.piece(log_id, state.file), 12)
    with pytest.raises(DamagedPiece, match=r"\.state of .* is damaged: the checksum") as refused:
        await done(restoring(folder, tmp_path / "restored"))
    assert "producers and transactions" in (refused.value.detail or "")
    assert "--to NUMBER" in (refused.value.hint or "")


async def test_a_restore_killed_after_its_last_step_does_not_overwrite_a_log_in_use(
    tmp_path: Path,
) -> None:
    world = await world_with_records(tmp_path)
    await world.stop()
    folder, data = BackupFolder(world.folder), tmp_path / "restored"
    under_way: dict[str, bytes] = {}

    def record_progress(size: int) -> None:
        under_way["raw"] = (data / "restore.json").read_bytes()

    await done(restoring(folder, data, on_read=record_progress))
    (data / "restore.json").write_bytes(under_way["raw"])
    identity = (data / "headrace.json").read_bytes()
    with pytest.raises(DataDirError, match="already"):
        await done(restoring(folder, data))
    assert (data / "headrace.json").read_bytes() == identity
    other = await start_broker_on(data)
    assert GROUP in {group.group_id for group in other.call.broker.groups.list_groups()}
    await other.stop()
