"""An in-memory implementation of ``headrace.files``, for volatile topics. Its files are lost when the process ends.

It has the same contract: reads and writes take a position, ``list`` returns sorted names, errors are
``OSError``. A sync does nothing. Each call is atomic, so several threads can use one file, as the log does.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from headrace.files import Buffer, Lock, LockHeld

__all__ = ["MemoryFile", "MemoryFiles"]


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


class MemoryFile:
    __slots__ = ("_content", "_mutex", "_path")

    def __init__(self, path: Path, content: bytearray, mutex: threading.Lock) -> None:
        self._path = path
        self._content: bytearray | None = content
        self._mutex = mutex

    @property
    def path(self) -> Path:
        return self._path

    def _open(self, number: int = 0) -> bytearray:
        """Return the content. Fail if the file is closed or ``number`` is negative."""
        if self._content is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if number < 0:
            raise _error(errno.EINVAL, self._path)
        return self._content

    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        content, total = self._open(position), sum(map(len, data))
        with self._mutex:
            if total and position > len(content):
                content.extend(bytes(position - len(content)))
            if position == len(content):
                for buffer in data:
                    content += buffer
            elif total:
                content[position : position + total] = b"".join(data)
        return total

    def pread(self, size: int, position: int) -> bytes:
        content = self._open(position)
        with self._mutex:
            return bytes(content[position : position + size])

    def pread_nowait(self, size: int, position: int) -> bytes | bytearray | None:
        return self.pread(size, position)

    def sync(self) -> None:
        self._open()

    def truncate(self, size: int) -> None:
        content = self._open(size)
        with self._mutex:
            if size <= len(content):
                del content[size:]
            else:
                content.extend(bytes(size - len(content)))

    def size(self) -> int:
        return len(self._open())

    def close(self) -> None:
        self._content = None


class _MemoryLock:
    """A lock belongs to the file's content, so it survives a rename or removal of the file."""

    def __init__(self, held: list[bytearray], content: bytearray) -> None:
        self._held = held
        self._content: bytearray | None = content
        held.append(content)

    def release(self) -> None:
        if self._content is not None:
            self._held[:] = [other for other in self._held if other is not self._content]
            self._content = None


class MemoryFiles:
    """A tree of files in memory. It starts with one empty directory, ``root``."""

    def __init__(self, root: Path) -> None:
        self._directories = {root}
        self._contents: dict[Path, bytearray] = {}
        self._locked: list[bytearray] = []
        self._mutex = threading.Lock()

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        with self._mutex:
            if path.parent not in self._directories or (not create and path not in self._contents):
                raise _error(errno.EISDIR if path in self._directories else errno.ENOENT, path)
            if create:
                if path in self._contents or path in self._directories:
                    raise _error(errno.EEXIST, path)
                self._contents[path] = bytearray()
            return MemoryFile(path, self._contents[path], self._mutex)

    def exists(self, path: Path) -> bool:
        return path in self._contents or path in self._directories

    def list(self, directory: Path) -> list[str]:
        with self._mutex:
            self._expect_directory(directory)
            return sorted(
                path.name
                for path in (*self._contents, *self._directories)
                if path.parent == directory != path
            )

    def make_dir(self, directory: Path) -> None:
        with self._mutex:
            if directory in self._directories:
                return
            if directory in self._contents:
                raise _error(errno.EEXIST, directory)
            self._expect_directory(directory.parent)
            self._directories.add(directory)

    def rename(self, old: Path, new: Path) -> None:
        with self._mutex:
            self._expect_directory(new.parent)
            if new in self._directories:
                raise _error(errno.EISDIR, new)
            if old not in self._contents:
                raise _error(errno.ENOENT, old)
            self._contents[new] = self._contents.pop(old)

    def remove(self, path: Path) -> None:
        with self._mutex:
            if path in self._directories:
                raise _error(errno.EISDIR, path)
            if path not in self._contents:
                raise _error(errno.ENOENT, path)
            del self._contents[path]

    def remove_dir(self, directory: Path) -> None:
        with self._mutex:
            self._expect_directory(directory)
            if any(path.parent == directory for path in (*self._contents, *self._directories)):
                raise _error(errno.ENOTEMPTY, directory)
            self._directories.discard(directory)

    def sync_dir(self, directory: Path) -> None:
        with self._mutex:
            self._expect_directory(directory)

    def lock(self, path: Path) -> Lock:
        with self._mutex:
            self._expect_directory(path.parent)
            content = self._contents.setdefault(path, bytearray())
            if any(other is content for other in self._locked):
                raise LockHeld(str(path))
            return _MemoryLock(self._locked, content)

    def _expect_directory(self, directory: Path) -> None:
        if directory not in self._directories:
            raise _error(errno.ENOTDIR if directory in self._contents else errno.ENOENT, directory)
