"""What Spark wrote into a checkpoint on this machine, synced before the log commits the batch that it belongs to.

Spark writes a file beside its place, renames it, and syncs neither. The log syncs a batch and its progress record. A
power loss in between would leave progress without the state that it tells of. So for each batch:

    Spark       plans the batch (``offsets/N``), runs it, writes the state behind it
    sync        every file that is new since the last sync, then every folder that has one
    log         commits the batch
    Spark       notes that it is done (``commits/N``); the next sync has it

After a power loss a file is whole if a sync has had it. Of the rest there may be anything: not there, empty, cut short.
These are ``commits/N`` of the last batch, and what belongs to the next one; ``headrace.flow.resumption`` does without
them. Spark never changes a file, except that RocksDB's are copied to their place byte by byte, in the background: a
file counts as synced once it had the same size and time at two syncs.

On any other file system a file that is closed is there to stay; that is what such a system promises.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.flow.errors import FlowError

__all__ = ["CheckpointSync", "SyncFailed"]

_AT_ONCE = 8
"""Syncs that wait together share a commit of the file system's journal."""
_ABOVE = 4
"""The folders of the flow and of all checkpoints, the data folder, and where that is."""

_Stamp = tuple[int, int, int]
"""Inode, size, and the time of the last change in nanoseconds."""


class SyncFailed(FlowError):
    code = "HR-FLOW-CHECKPOINT-SYNC"


class CheckpointSync:
    """For one run of a flow; does nothing where the checkpoint is not on this machine."""

    def __init__(self, location: str, fsync: Callable[[int], None] = os.fsync) -> None:
        found = urlsplit(location)
        self._root = Path(unquote(found.path)) if found.scheme in ("", "file") else None
        self._fsync = fsync
        self._folders: dict[str, dict[str, int]] = {}
        """Inodes by name, by folder: what was there at the last sync."""
        self._young: dict[str, _Stamp] = {}
        """Files that were new or changed at the last sync."""

    def sync(self) -> None:
        """All that was written since the last time."""
        if self._root is None:
            return
        files, folders = self._changed(str(self._root))
        stamps = {path: stamp for path in files if (stamp := _stamp(path)) is not None}
        changed = [path for path, stamp in stamps.items() if self._young.get(path) != stamp]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # In this order: a name that is there to stay must be that of a whole file.
            list(pool.map(self._sync_path, changed))
            list(pool.map(self._sync_path, folders))
        self._young = {path: stamps[path] for path in changed}

    def _changed(self, root: str) -> tuple[list[str], list[str]]:
        """Files that are new, or were at the last sync, and folders that have a new name."""
        files, folders = list(self._young), list[str]()
        if not self._folders:
            # The folders above may be as new as the checkpoint itself.
            folders += [str(one) for one in Path(root).parents[:_ABOVE] if os.access(one, os.R_OK)]
        for folder, found in _walk(root):
            before = self._folders.get(folder)
            fresh = [one for one in found if before is None or before.get(one.name) != one.inode]
            files += [f"{folder}/{one.name}" for one in fresh if not one.is_folder]
            if fresh:
                folders.append(folder)
            self._folders[folder] = {one.name: one.inode for one in found}
        return files, folders

    def _sync_path(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            # Spark removes what is too old to be needed.
            return
        try:
            self._fsync(descriptor)
        except OSError as error:
            raise SyncFailed(
                f"cannot sync {path}, a part of a flow's checkpoint: {error.strerror or error}",
                hint="look for a full or failing disk, and start the flow again",
            ) from error
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    inode: int
    is_folder: bool


def _walk(folder: str) -> Iterator[tuple[str, list[_Entry]]]:
    """Names and inodes come with a folder's own bytes: nothing is asked of the files."""
    try:
        with os.scandir(folder) as entries:
            found = [_Entry(one.name, one.inode(), one.is_dir(follow_symlinks=False)) for one in entries]
    except FileNotFoundError:
        return
    yield folder, found
    for one in found:
        if one.is_folder:
            yield from _walk(f"{folder}/{one.name}")


def _stamp(path: str) -> _Stamp | None:
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
