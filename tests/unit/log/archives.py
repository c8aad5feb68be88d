"""A partition with its archive: in a folder, or in a bucket."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from headrace.files import Files
from headrace.log.archive_bucket import BucketStore
from headrace.log.archive_folder import FolderStore
from headrace.log.archive_move import ArchiveMove
from headrace.log.archive_store import INDEX_BYTES_MAX, ArchiveLocation, ArchiveStore, ByteCache
from headrace.log.config import LogConfig
from headrace.log.pace import Pace
from headrace.log.partition import PartitionLog
from headrace.log.retention import segments_past_retention
from headrace.testing.clock import DrivenClock
from tests.support.s3 import S3Server
from tests.unit.log.conftest import NOW_MS, append

CONFIG = LogConfig(
    segment_bytes=400, index_interval_bytes=100, retention_bytes=800, retention_ms=-1, is_archived=True
)


class ArchiveFixture(ABC):
    """An archive, accessed without the code under test."""

    @abstractmethod
    def store(self, files: Files) -> ArchiveStore: ...

    @abstractmethod
    def names(self) -> set[str]:
        """The names of the partition's files in the archive, complete or in parts."""

    @abstractmethod
    def change(self, name: str, position: int) -> None:
        """Change one byte of a file."""

    @abstractmethod
    def unavailable(self) -> contextlib.AbstractContextManager[object]:
        """Make the archive unavailable within the block."""


class InFolder(ArchiveFixture):
    def __init__(self, root: Path, files: Files) -> None:
        self.root = root
        self._files = files
        files.make_dir(root)
        files.sync_dir(root.parent)

    def store(self, files: Files) -> FolderStore:
        return FolderStore(files, self.root, "cluster")

    def names(self) -> set[str]:
        home = self.root / "cluster" / "topic" / "0"
        return set(self._files.list(home)) if self._files.exists(home) else set()

    def change(self, name: str, position: int) -> None:
        file = self._files.open(self.root / "cluster" / "topic" / "0" / name)
        (byte,) = file.pread(1, position)
        file.pwrite([bytes([byte ^ 0xFF])], position)
        file.close()

    @contextlib.contextmanager
    def unavailable(self) -> Iterator[None]:
        hidden = self.root.with_name("away")
        self._files.rename(self.root, hidden)
        yield
        assert not self._files.exists(self.root), (
            "something was written to the archive folder while the archive was unavailable"
        )
        self._files.rename(hidden, self.root)


class InBucket(ArchiveFixture):
    def __init__(self, s3: S3Server) -> None:
        self.s3 = s3
        self.bucket = s3.fresh_bucket()

    def store(self, files: Files) -> BucketStore:
        return BucketStore(self.s3.address(self.bucket), "cluster")

    def names(self) -> set[str]:
        return {key.split("/")[3] for key in self.s3.objects(self.bucket)}

    def change(self, name: str, position: int) -> None:
        self.s3.change(self.bucket, f"cluster/topic/0/{name}/00000", position)

    def unavailable(self) -> contextlib.AbstractContextManager[object]:
        return self.s3.rule("refuse")


class ArchivedPartition:
    """A partition, and its archive."""

    def __init__(self, root: Path, files: Files, archive: ArchiveFixture) -> None:
        self.files = files
        self.home = root / "partition"
        self.archive = archive
        files.make_dir(self.home)
        files.sync_dir(root)

    def open(self, files: Files | None = None, *, leader_epoch: int = 0) -> PartitionLog:
        files = files or self.files
        return PartitionLog(
            files,
            self.home,
            config=CONFIG,
            now_ms=NOW_MS,
            leader_epoch=leader_epoch,
            archive_location=ArchiveLocation(
                self.archive.store(files), "topic/0", ByteCache(INDEX_BYTES_MAX)
            ),
        )

    def filled(self, count: int = 40) -> PartitionLog:
        log = self.open()
        for number in range(count):
            append(log, b"value-%d" % number, timestamp_ms=NOW_MS + number)
        log.sync_now()
        return log


def expected_names(log: PartitionLog) -> set[str]:
    """The names of the files that the archive must have: those of the listed segments, and no other."""
    return {
        f"{entry.base_offset:020d}{suffix}" for entry in log.archive.entries for suffix in (".log", ".index")
    }


def begin_move(log: PartitionLog) -> ArchiveMove | None:
    def pace(stop: threading.Event) -> Pace:
        return Pace(DrivenClock(), stop, 0)

    return ArchiveMove.begin(log, segments_past_retention(log, NOW_MS), pace)


def archive_now(log: PartitionLog) -> int:
    log.archive.remove_unfinished(threading.Event())
    move = begin_move(log)
    if move is None:
        return 0
    moved = 0
    try:
        while move.segments:
            move.copy()
            move.adopt().remove_files()
            moved += 1
    finally:
        move.end()
    return moved
