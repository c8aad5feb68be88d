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
        self._names: dict[Path, dict[str, _File]] = {}
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
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                self._names[path] = _names(path)
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
        return harmed

    def _files(self, folder: Path) -> list[tuple[Path, bytes]]:
        found = []
        for name, file in self._names.get(folder, {}).items():
            path = folder / name
            if path in self._names:
                found += self._files(path)
            elif file in self._contents:
                found.append((path, self._contents[file]))
        return found


def _names(folder: Path) -> dict[str, _File]:
    found = {}
    with os.scandir(folder) as entries:
        for one in entries:
            status = one.stat(follow_symlinks=False)
            found[one.name] = (status.st_ino, status.st_mtime_ns)
    return found


def _content(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, size, 0)
