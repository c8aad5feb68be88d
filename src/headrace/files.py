"""The interface to the file system. The log accesses the disk only through it, so tests can inject faults.

The contract is that of POSIX. A write can be short, and an error can surface only at ``sync``. A created, renamed or
removed name is durable only after ``sync_dir`` of its directory. Errors are plain ``OSError``, which callers interpret.

Only their owner can read the files and directories of Headrace, whatever the umask allows.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

__all__ = [
    "DIR_MODE",
    "FILE_MODE",
    "File",
    "Files",
    "Lock",
    "LockHeld",
    "SystemFiles",
    "create_private",
    "make_private_dir",
    "private",
    "readable",
]

Buffer = bytes | bytearray | memoryview

DIR_MODE = 0o700
FILE_MODE = 0o600


class LockHeld(Exception):
    """Another process holds the lock file."""


class Lock(Protocol):
    def release(self) -> None: ...


class File(Protocol):
    """One open file. Reads and writes name their position; the file has no cursor."""

    @property
    def path(self) -> Path: ...
    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        """Write the buffers in order. Return the number of bytes written. It can be smaller than their sum."""

    def pread(self, size: int, position: int) -> bytes:
        """Read ``size`` bytes, or fewer at the end of the file."""

    def pread_nowait(self, size: int, position: int) -> bytes | bytearray | None:
        """Like ``pread``, but return ``None`` if the bytes are not in the page cache."""

    def sync(self) -> None:
        """Return when the bytes written so far, and the file's size, would survive a power loss."""

    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class Files(Protocol):
    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing. ``create`` creates an empty file, and fails if the file exists."""

    def exists(self, path: Path) -> bool: ...
    def list(self, directory: Path) -> list[str]: ...
    def make_dir(self, directory: Path) -> None:
        """Create one directory, unless it exists."""

    def rename(self, old: Path, new: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_dir(self, directory: Path) -> None:
        """Remove one empty directory."""

    def sync_dir(self, directory: Path) -> None: ...
    def lock(self, path: Path) -> Lock:
        """Lock a file exclusively, and create it if needed. Raise ``LockHeld`` if another process has the lock."""


class SystemFile:
    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    @property
    def descriptor(self) -> int:
        return self._fd

    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        if len(data) == 1:
            return os.pwrite(self._fd, data[0], position)
        return os.pwritev(self._fd, data[:1024], position)

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        read_bytes = len(data)
        while read_bytes < size and (chunk := os.pread(self._fd, size - read_bytes, position + read_bytes)):
            parts.append(chunk)
            read_bytes += len(chunk)
        return b"".join(parts)

    def pread_nowait(self, size: int, position: int) -> bytes | bytearray | None:
        buffer = bytearray(size)
        try:
            read_bytes = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno == errno.EOPNOTSUPP:
                return self.pread(size, position)
            raise
        if read_bytes < size and position + read_bytes < self.size():
            return None
        del buffer[read_bytes:]
        return buffer

    def sync(self) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SystemLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SystemFiles:
    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return SystemFile(os.open(path, flags, FILE_MODE), path)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list(self, directory: Path) -> list[str]:
        return sorted(entry.name for entry in directory.iterdir())

    def make_dir(self, directory: Path) -> None:
        directory.mkdir(DIR_MODE, exist_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_dir(self, directory: Path) -> None:
        directory.rmdir()

    def sync_dir(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> SystemLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LockHeld(str(path)) from None
            raise
        return SystemLock(fd)


def make_private_dir(directory: Path) -> None:
    """Create the directory and its missing parents. An existing directory keeps its mode, because the user may have set
    it.
    """
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(DIR_MODE, exist_ok=True)


def create_private(path: Path) -> None:
    """Create the file unless it exists, before a library creates it with another mode.

    Errors are ignored, because the library then fails too, with a better message.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def private(path: str, flags: int) -> int:
    """An ``opener`` for ``open``: a file that it creates can be read only by its owner."""
    return os.open(path, flags, FILE_MODE)


def readable(descriptor: int, timeout_s: float) -> bool:
    """Whether the descriptor has bytes or reaches its end within ``timeout_s``.

    This uses poll, because select fails for descriptors above 1,023, and a busy process has such descriptors.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))
