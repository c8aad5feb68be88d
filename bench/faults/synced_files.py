"""What a power loss leaves of a folder: what was synced, and of the rest anything.

Nothing is simulated of the files themselves. Whoever syncs calls ``fsync`` of this in the place of ``os.fsync``; the
content of a file, and the names in a folder, are remembered as they are at that moment. A file is there after the loss
if its folder was synced with its name in it.
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
"""Inode and the time of its last change: an inode alone is used again."""


class PowerLoss(Exception):
    """From here on nothing is synced."""


class SyncedFiles:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[_File, bytes] = {}
        self._names: dict[int, dict[str, _File]] = {}
        """By inode: a folder that is renamed has what it had."""
        self.calls = 0
        self.calls_left: int | None = None
        """After so many more the power is lost; None for not at all."""

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
        """Puts into the folder what is left of it; returns how many files of what was not synced are lost or torn."""
        kept = dict(self._files(folder))
        harmed = 0
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            content = path.read_bytes()
            if kept.get(path) == content:
                continue
            fate = rng.choice(("old", "old", "empty", "cut", "whole"))
            harmed += fate != "whole"
            if fate == "whole":
                kept[path] = content
            elif fate == "empty":
                kept[path] = b""
            elif fate == "cut":
                kept[path] = content[: rng.randrange(len(content) + 1)]
        shutil.rmtree(folder)
        for path, content in kept.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._sync_all(folder)
        return harmed

    def _files(self, folder: Path) -> list[tuple[Path, bytes]]:
        found = []
        for name, file in self._names.get(_inode(folder), {}).items():
            path = folder / name
            if file in self._contents:
                found.append((path, self._contents[file]))
            elif path.is_dir():
                found += self._files(path)
        return found

    def _sync_all(self, folder: Path) -> None:
        """What is there when the power comes back is on the disk."""
        for path in [folder, *folder.rglob("*")] if folder.exists() else ():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                self.fsync(descriptor)
            finally:
                os.close(descriptor)


def _inode(folder: Path) -> int:
    return folder.stat().st_ino if folder.exists() else 0


def _names(folder: int) -> dict[str, _File]:
    found = {}
    with os.scandir(folder) as entries:
        for one in entries:
            status = one.stat(follow_symlinks=False)
            found[one.name] = (status.st_ino, status.st_mtime_ns)
    return found


def _content(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, size, 0)
