"""Simulates a power loss on a real folder: everything that was synced remains, and a random part of the rest.

The product calls ``SyncedFiles.fsync`` instead of ``os.fsync``. Each call records the content of a file, or the names
in a folder. After the loss, the synced content of a file exists only if the folder was synced while the folder
contained the file's name.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from pathlib import Path

__all__ = ["PowerLoss", "SyncedFiles"]

_File = tuple[int, int]
"""Identifies a file: its inode and its modification time, because the file system reuses inodes."""


class PowerLoss(Exception):
    """Raised by the first sync after the power is lost."""


class SyncedFiles:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[_File, bytes] = {}
        self._names: dict[int, dict[str, _File]] = {}
        """The names in each folder, by the folder's inode, because a renamed folder keeps its contents."""
        self.calls = 0
        self.calls_left: int | None = None
        """The power fails after this many further syncs; None means never."""

    def fsync(self, descriptor: int) -> None:
        with self._lock:
            if self.calls_left == 0:
                raise PowerLoss("the power is lost")
            if self.calls_left is not None:
                self.calls_left -= 1
            self.calls += 1
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                self._names[status.st_ino] = _names(descriptor)
            else:
                self._contents[status.st_ino, status.st_mtime_ns] = _content(descriptor, status.st_size)

    def lose_power(self, folder: Path, rng: random.Random) -> int:
        """Change the folder to a state after the loss. Return the number of unsynced files that are lost or torn."""
        remaining = dict(self._files(folder))
        damaged = 0
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = path.read_bytes()
            if remaining.get(path) == content:
                continue
            fate = rng.choice(("old", "old", "empty", "cut", "whole"))
            damaged += fate != "whole"
            if fate == "whole":
                remaining[path] = content
            elif fate == "empty":
                remaining[path] = b""
            elif fate == "cut":
                remaining[path] = content[: rng.randrange(len(content) + 1)]
        shutil.rmtree(folder)
        for path, content in remaining.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._sync_all(folder)
        return damaged

    def _files(self, folder: Path) -> list[tuple[Path, bytes]]:
        files = []
        for name, file in self._names.get(_inode(folder), {}).items():
            path = folder / name
            if file in self._contents:
                files.append((path, self._contents[file]))
            elif path.is_dir():
                files += self._files(path)
        return files

    def _sync_all(self, folder: Path) -> None:
        """Sync every remaining file and folder."""
        for path in [folder, *folder.rglob("*")] if folder.exists() else ():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                self.fsync(descriptor)
            finally:
                os.close(descriptor)


def _inode(folder: Path) -> int:
    return folder.stat().st_ino if folder.exists() else 0


def _names(folder: int) -> dict[str, _File]:
    names = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            names[entry.name] = (status.st_ino, status.st_mtime_ns)
    return names


def _content(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, size, 0)
