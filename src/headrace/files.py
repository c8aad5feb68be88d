"""Files as a port: everything the log does to a disk goes through here, so that faults can be injected
beneath it.

The contract is POSIX's, no more: a write may be short, an error may surface only at ``sync``, and a created,
renamed or removed name is durable only after ``sync_dir`` of its directory. Errors are plain ``OSError``;
callers decide what they mean.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from headrace.private import DIR_MODE, FILE_MODE

__all__ = ["File", "Files", "Lock", "LockHeld", "SystemFiles"]

Buffer = bytes | bytearray | memoryview


class LockHeld(Exception):
    """Another process holds the lock file."""


class Lock(Protocol):
    def release(self) -> None: ...


class File(Protocol):
    """One open file, addressed by position; it keeps no cursor."""

    @property
    def path(self) -> Path: ...
    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after the other; return how many bytes were taken, which may be fewer."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""

    def pread_ready(self, size: int, position: int) -> bytes | bytearray | None:
        """As ``pread``, but ``None`` when the disk would have to be waited for."""

    def sync(self) -> None:
        """Return once the bytes written so far, and the file's size, would survive a power loss."""

    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class Files(Protocol):
    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing. ``create`` makes an empty file and fails if there is one."""

    def exists(self, path: Path) -> bool: ...
    def list(self, directory: Path) -> list[str]: ...
    def make_dir(self, directory: Path) -> None:
        """Create one directory; no error if it is there."""

    def rename(self, old: Path, new: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_dir(self, directory: Path) -> None:
        """Remove one empty directory."""

    def sync_dir(self, directory: Path) -> None: ...
    def lock(self, path: Path) -> Lock:
        """Take an exclusive lock on a file, creating it; ``LockHeld`` if another process has it."""


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
        got = len(data)
        while got < size and (more := os.pread(self._fd, size - got, position + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def pread_ready(self, size: int, position: int) -> bytes | bytearray | None:
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno == errno.EOPNOTSUPP:
                return self.pread(size, position)
            raise
        if got < size and position + got < self.size():
            return None
        del buffer[got:]
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
