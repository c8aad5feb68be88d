"""The checkpoint of a flow. Hadoop's FileSystem API reads and changes it. It is synced if it is on this machine.

Each run of a flow with state has its own checkpoint directory. A driver that was replaced can still write files, for
example if its machine was paused, or if tasks of a stopped query finish late. The log rejects the rows of that driver,
but the file system accepts its files. So the new owner of a flow renames the directory to the next number before
reading it. Later writes of the old driver fail, or they create a directory that is never read.

Spark writes a temporary file and renames it, but syncs neither the file nor the directory. But the log syncs a batch
and its progress record. A power loss could then leave a progress record whose state is lost. So for each batch:

    Spark       plans the batch (``offsets/N``), runs it, writes the state after it
    sync        syncs every file that is new since the last sync, then every directory with a new file
    log         commits the batch
    Spark       writes ``commits/N``; the next sync includes it

After a power loss, every synced file is complete. Other files can be missing, empty or truncated: ``commits/N`` of the
last batch, and files of the next batch. ``headrace.flow.flow_state`` does not need these. Spark never changes a
finished file. But RocksDB copies files in the background, so a sync can find a file that still grows. So a file counts
as synced after two syncs that found the same size and modification time. If the checkpoint is not on a local file
system, nothing is synced: a closed file is assumed to be durable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headrace.flow.errors import CheckpointLost, FlowError

__all__ = ["Checkpoint", "CheckpointSync", "SyncFailed", "first_folder", "newest_folder", "take_folder"]
_RENAMES_MAX = 3
_ALREADY_RENAMED = ("FileNotFoundException", "FileAlreadyExistsException")
_CONCURRENT_SYNCS = 8
"""The number of concurrent syncs. Concurrent syncs share one commit of the file system's journal."""
_PARENTS_SYNCED = 4
"""The number of parent directories to sync: those of the flow and of all checkpoints, the data directory, and its
parent.
"""
_Stamp = tuple[int, int, int]
"""Inode, size, and the time of the last change in nanoseconds."""


class Checkpoint:
    """A flow's checkpoint: its planned batches (``offsets``) and finished batches (``commits``)."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._jvm: Any = spark._jvm
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()

    def exists(self) -> bool:
        """Whether Spark would accept the checkpoint: its id must be readable."""
        try:
            return "id" in json.loads(self._read("metadata"))
        except (Py4JJavaError, ValueError):
            return False

    def last_planned(self) -> int | None:
        return self._last("offsets")

    def last_done(self) -> int | None:
        return self._last("commits")

    def unfinished(self) -> int | None:
        """Return the batch that is planned but not finished; None if no such batch exists."""
        planned, done = self.last_planned(), self.last_done()
        return planned if planned is not None and (done is None or planned > done) else None

    def plans(self) -> list[int]:
        return self._numbers("offsets")

    def is_done(self, batch: int) -> bool:
        """Whether the commit file of the batch is readable. A power loss can leave a torn file."""
        try:
            version, metadata = self._read(f"commits/{batch}").split("\n", 1)
            return version.startswith("v") and isinstance(json.loads(metadata), dict)
        except (Py4JJavaError, ValueError):
            return False

    def planned_offsets(self, batch: int) -> dict[str, dict[str, int]] | None:
        """Return the end offsets in the batch's plan, by topic and partition; None without a readable plan."""
        try:
            return parse_offsets(self._read(f"offsets/{batch}"))
        except (Py4JJavaError, ValueError):
            return None

    def forget_plan(self, batch: int) -> None:
        """Remove the plan, so that Spark plans the batch again."""
        self._remove(self._path(f"offsets/{batch}"))

    def forget_done(self, batch: int) -> None:
        """Remove the commit file, so that Spark runs the batch again."""
        self._remove(self._path(f"commits/{batch}"))

    def forget_state(self, batch: int) -> None:
        """Remove the state files that an earlier attempt of the batch wrote. The next attempt overwrites the changelog
        files, but not a snapshot, so Spark would load the snapshot of the earlier attempt.
        """
        version = batch + 1
        for depth in ("*/*", "*/*/*"):
            pattern = self._path(f"state/{depth}/{{{version}.*,{version}_*}}")
            for status in self._fs(pattern).globStatus(pattern) or ():
                self._remove(status.getPath())

    def remove(self) -> None:
        self._remove(self._jvm.org.apache.hadoop.fs.Path(self.location))

    def remove_siblings(self, prefix: str) -> None:
        """Remove the directories with this name prefix in the parent directory of this checkpoint."""
        pattern = self._jvm.org.apache.hadoop.fs.Path(f"{self.location.rpartition('/')[0]}/{prefix}*")
        for status in self._fs(pattern).globStatus(pattern) or ():
            self._remove(status.getPath())

    def _read(self, name: str) -> str:
        path = self._path(name)
        stream = self._fs(path).open(path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def _remove(self, path: Any) -> None:
        """Remove a file or directory, and its checksum file if the file system has one."""
        self._fs(path).delete(path, True)

    def _last(self, folder: str) -> int | None:
        return max(self._numbers(folder), default=None)

    def _numbers(self, folder: str) -> list[int]:
        path = self._path(folder)
        fs = self._fs(path)
        if not fs.exists(path):
            return []
        names = [status.getPath().getName() for status in fs.listStatus(path)]
        return [int(name) for name in names if name.isdecimal()]

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")

    def _fs(self, path: Any) -> Any:
        return path.getFileSystem(self._conf)


def parse_offsets(text: str) -> dict[str, dict[str, int]]:
    """Parse a plan: a version, a line of metadata, and a line for each source with its offsets, or a dash if none."""
    planned: dict[str, dict[str, int]] = {}
    for line in text.splitlines()[2:]:
        if line.startswith("{"):
            for topic, offsets in json.loads(line).items():
                planned[topic] = {number: int(offset) for number, offset in offsets.items()}
    return planned


def first_folder(location: str) -> str:
    """Return the first checkpoint directory of a new generation."""
    return f"{location}.1"


def newest_folder(spark: SparkSession, location: str) -> str | None:
    """Return the checkpoint directory with the highest number; None if no directory exists."""
    session: Any = spark._jsparkSession
    pattern = _path(spark, f"{location}.*")
    folders = pattern.getFileSystem(session.sessionState().newHadoopConf()).globStatus(pattern) or ()
    names = (status.getPath().getName().rpartition(".")[2] for status in folders)
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    return f"{location}.{number}" if number else None


def take_folder(spark: SparkSession, folder: str, expect_current_owner: Callable[[], None]) -> str:
    """Rename the newest directory to the next number, and return the new name. If another driver renamed it first, try
    again, unless ``expect_current_owner`` raises because this driver no longer owns the flow.
    """
    for _ in range(_RENAMES_MAX):
        location, number = folder.rsplit(".", 1)
        new_folder = f"{location}.{int(number) + 1}"
        try:
            _rename(spark, folder, new_folder)
            return new_folder
        except Py4JJavaError as error:
            if not error.java_exception.getClass().getName().endswith(_ALREADY_RENAMED):
                raise
        expect_current_owner()
        folder = newest_folder(spark, location) or folder
    raise CheckpointLost(
        f"the checkpoint at {folder} cannot be renamed",
        hint="another driver might be opening the flow; start the flow again",
    )


def _rename(spark: SparkSession, old: str, new: str) -> None:
    """Rename as Spark renames checkpoint files: atomically, and without replacing an existing directory."""
    gateway: Any = spark.sparkContext._gateway
    old_path, hadoop = _path(spark, old), gateway.jvm.org.apache.hadoop.fs
    session: Any = spark._jsparkSession
    files = hadoop.FileContext.getFileContext(old_path.toUri(), session.sessionState().newHadoopConf())
    files.rename(old_path, _path(spark, new), gateway.new_array(hadoop.Options.Rename, 0))


def _path(spark: SparkSession, location: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(location)


class SyncFailed(FlowError):
    code = "HR-FLOW-CHECKPOINT-SYNC"


class CheckpointSync:
    """Syncs the checkpoint of one run of a flow. Does nothing if the checkpoint is not on this machine."""

    def __init__(self, location: str, fsync: Callable[[int], None] = os.fsync) -> None:
        url = urlsplit(location)
        self._root = Path(unquote(url.path)) if url.scheme in ("", "file") else None
        self._fsync = fsync
        self._folders: dict[str, dict[str, int]] = {}
        """By directory: the file names at the last sync, with their inodes."""
        self._changed_files: dict[str, _Stamp] = {}
        """Files that were new or changed at the last sync, with the size and time that they had."""

    def sync(self) -> None:
        if self._root is None:
            return
        files, folders = self._changed(str(self._root))
        stamps = {path: stamp for path in files if (stamp := _stamp(path)) is not None}
        changed = [path for path, stamp in stamps.items() if self._changed_files.get(path) != stamp]
        with ThreadPoolExecutor(_CONCURRENT_SYNCS) as pool:
            # Files first, then directories: a durable name must belong to a complete file.
            list(pool.map(self._sync_path, changed))
            list(pool.map(self._sync_path, folders))
        self._changed_files = {path: stamps[path] for path in changed}

    def _changed(self, root: str) -> tuple[list[str], list[str]]:
        """Return the files that are new, or that the last sync found new or changed, and the directories with new
        names.
        """
        files, folders = list(self._changed_files), list[str]()
        if not self._folders:
            # The first sync includes the parent directories, because they may be as new as the checkpoint.
            folders += [
                str(parent) for parent in Path(root).parents[:_PARENTS_SYNCED] if os.access(parent, os.R_OK)
            ]
        for folder, entries in _walk(root):
            known_inodes = self._folders.get(folder)
            new_entries = [
                entry
                for entry in entries
                if known_inodes is None or known_inodes.get(entry.name) != entry.inode
            ]
            files += [f"{folder}/{entry.name}" for entry in new_entries if not entry.is_folder]
            if new_entries:
                folders.append(folder)
            self._folders[folder] = {entry.name: entry.inode for entry in entries}
        return files, folders

    def _sync_path(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            # Spark deletes old files that are not needed.
            return
        try:
            self._fsync(descriptor)
        except OSError as error:
            raise SyncFailed(
                f"cannot sync {path} of a flow's checkpoint: {error.strerror or error}",
                hint="check for a full or failing disk, then start the flow again",
            ) from error
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    inode: int
    is_folder: bool


def _walk(folder: str) -> Iterator[tuple[str, list[_Entry]]]:
    """Yield each directory with its entries. Reads only directories, which have the names and inodes of their files."""
    try:
        with os.scandir(folder) as directory_entries:
            entries = [
                _Entry(entry.name, entry.inode(), entry.is_dir(follow_symlinks=False))
                for entry in directory_entries
            ]
    except FileNotFoundError:
        return
    yield folder, entries
    for entry in entries:
        if entry.is_folder:
            yield from _walk(f"{folder}/{entry.name}")


def _stamp(path: str) -> _Stamp | None:
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
