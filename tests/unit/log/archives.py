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
from headrace.log.archive_store import INDEX_BYTES_MAX, ArchivePlace, ArchiveStore
from headrace.log.archiving import Archiving
from headrace.log.byte_cache import ByteCache
from headrace.log.config import LogConfig
from headrace.log.pace import Pace
from headrace.log.partition import PartitionLog
from headrace.log.retention import outlived
from headrace.testing.faulty_clock import DrivenClock
from tests.support.s3 import S3Server
from tests.unit.log.conftest import NOW_MS, append

CONFIG = LogConfig(
    segment_bytes=400, index_interval_bytes=100, retention_bytes=800, retention_ms=-1, is_archived=True
)


class Kept(ABC):
    """One archive, as it is seen from outside."""

    @abstractmethod
    def store(self, files: Files) -> ArchiveStore: ...

    @abstractmethod
    def names(self) -> set[str]:
        """The files of the partition that are there, in whatever parts."""

    @abstractmethod
    def change(self, name: str, position: int) -> None:
        """Change one byte of a file."""

    @abstractmethod
    def away(self) -> contextlib.AbstractContextManager[object]:
        """While this lasts, it cannot be used."""


class InFolder(Kept):
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
    def away(self) -> Iterator[None]:
        hidden = self.root.with_name("away")
        self._files.rename(self.root, hidden)
        yield
        assert not self._files.exists(self.root), "nothing is written to where the archive is not"
        self._files.rename(hidden, self.root)


class InBucket(Kept):
    def __init__(self, s3: S3Server) -> None:
        self.s3 = s3
        self.bucket = s3.fresh_bucket()

    def store(self, files: Files) -> BucketStore:
        return BucketStore(self.s3.address(self.bucket), "cluster")

    def names(self) -> set[str]:
        return {key.split("/")[3] for key in self.s3.objects(self.bucket)}

    def change(self, name: str, position: int) -> None:
        self.s3.change(self.bucket, f"cluster/topic/0/{name}/00000", position)

    def away(self) -> contextlib.AbstractContextManager[object]:
        return self.s3.rule("refuse")


class Place:
    """A partition, and its archive."""

    def __init__(self, root: Path, files: Files, archive: Kept) -> None:
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
            archive_place=ArchivePlace(self.archive.store(files), "topic/0", ByteCache(INDEX_BYTES_MAX)),
        )

    def filled(self, count: int = 40) -> PartitionLog:
        log = self.open()
        for number in range(count):
            append(log, b"value-%d" % number, timestamp_ms=NOW_MS + number)
        log.sync_now()
        return log


def expected_names(log: PartitionLog) -> set[str]:
    """What the archive holds when it holds what counts, and nothing else."""
    return {
        f"{entry.base_offset:020d}{suffix}" for entry in log.archive.entries for suffix in (".log", ".index")
    }


def begun(log: PartitionLog) -> Archiving | None:
    def pace(stop: threading.Event) -> Pace:
        return Pace(DrivenClock(), stop, 0)

    return Archiving.begin(log, outlived(log, NOW_MS), pace)


def archive_now(log: PartitionLog) -> int:
    log.archive.remove_unfinished(threading.Event())
    archiving = begun(log)
    if archiving is None:
        return 0
    moved = 0
    try:
        while archiving.segments:
            archiving.copy()
            archiving.adopt().remove_files()
            moved += 1
    finally:
        archiving.end()
    return moved
