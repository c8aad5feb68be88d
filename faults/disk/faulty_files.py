"""Files in memory that simulate disk faults: lost and torn writes, failed syncs and errors. They test the log.

Without a fault they behave like real files. With the same seed, the same operations have the same outcome:

    files = FaultyFiles(seed=7)
    files.fail("write", path="*.log", nth=3, error=errno.ENOSPC)
    …
    files = files.crash()       # power loss: new files, with one possible content of the disk
    files = files.restart()     # kill -9: all writes survive, open files and locks do not

Crash at every operation, until a run ends before the crash:

    for n in itertools.count(1):
        files = FaultyFiles(seed=n)
        fault = files.crash_at(n)
        with contextlib.suppress(Crash):
            run(files)
        if not fault.hits:
            break
        check(files.crash())

After a crash, every operation on the old files raises ``Crash``, so that a remaining thread cannot change the disk. All
methods are thread-safe. A sync does not cover a write that starts after the sync.
"""

from __future__ import annotations

import builtins
import errno
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from faults.disk.fault import CHANGES, Crash, Fault, Operation, Stage
from faults.disk.faulty_content import FileNode, resize
from faults.disk.faulty_disk import Directory, Disk, os_error

__all__ = ["Crash", "Fault", "FaultyFile", "FaultyFiles", "Operation"]

Buffer = bytes | bytearray | memoryview

HOME = Path("/disk")
TRACE_LENGTH_MAX = 100_000


class FaultyFiles:
    """Implements ``headrace.files.Files``. ``home`` is a durable directory, which is empty at the start."""

    def __init__(
        self,
        seed: int = 0,
        *,
        home: Path = HOME,
        syncs_are_ignored: bool = False,
        capacity_bytes: int | None = None,
        cold_read_share: float = 0.0,
    ) -> None:
        rng = random.Random(seed)
        disk = Disk(rng, syncs_are_ignored=syncs_are_ignored, capacity_bytes=capacity_bytes)
        disk.make_home(home)
        self._start(disk, seed, cold_read_share)

    def _start(self, disk: Disk, seed: int, cold_read_share: float) -> None:
        self.seed = seed
        self.cold_read_share = cold_read_share
        self.watch: Callable[[Operation, Stage], None] | None = None
        """Called before and after every operation, and also during a sync. The lock is not held."""
        self.trace: deque[Operation] = deque(maxlen=TRACE_LENGTH_MAX)
        self.counts: Counter[str] = Counter()
        self.changes = 0
        self._disk = disk
        self._faults: builtins.list[Fault] = []
        self._mutex = threading.RLock()
        self._crashed = False
        self._cold_reads = random.Random(seed)

    # Faults that a test sets up.

    def fail(
        self,
        kind: str | None = None,
        *,
        path: str = "*",
        nth: int = 1,
        times: int | None = 1,
        error: int = errno.EIO,
    ) -> Fault:
        """Fail the nth matching operation, without an effect. Without ``kind``, every change of the disk matches."""
        return self._add(Fault("fail", kind, path, nth, times, error))

    def short_write(
        self, *, path: str = "*", nth: int = 1, times: int | None = 1, written_bytes: int | None = None
    ) -> Fault:
        """Write only the first ``written_bytes`` of the data, or a random part of it."""
        return self._add(Fault("short", "write", path, nth, times, written_bytes=written_bytes))

    def forget_sync(
        self, *, path: str = "*", nth: int = 1, times: int | None = 1, error: int = errno.EIO
    ) -> Fault:
        """Fail a sync and forget its changes: reads still return them, but they count as clean.

        A later sync succeeds without writing them. Linux behaves like this if it cannot write a page.
        """
        return self._add(Fault("forget", "sync", path, nth, times, error))

    def crash_at(
        self,
        nth: int,
        *,
        when: Literal["before", "after"] = "before",
        kind: str | None = None,
        path: str = "*",
    ) -> Fault:
        """End the process at the nth matching operation. Without ``kind``, every change of the disk matches."""
        return self._add(Fault("crash before" if when == "before" else "crash after", kind, path, nth))

    def heal(self) -> None:
        """Remove all faults and the limit of the disk's capacity. The effects of earlier faults remain."""
        with self._mutex:
            self._faults.clear()
            self._disk.capacity_bytes = None

    @property
    def capacity_bytes(self) -> int | None:
        return self._disk.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        with self._mutex:
            self._disk.capacity_bytes = capacity_bytes

    @property
    def used_bytes(self) -> int:
        with self._mutex:
            return self._disk.used_bytes

    def _add(self, fault: Fault) -> Fault:
        with self._mutex:
            self._faults.append(fault)
        return fault

    # Ends of the process.

    def crash(self) -> FaultyFiles:
        """Simulate a power loss. A second call can return another possible outcome of the same power loss."""
        with self._mutex:
            self._crashed = True
            return self._succeeded_by(self._disk.after_power_loss())

    def restart(self) -> FaultyFiles:
        """Simulate a kill of the process. The next process can read all writes, even those that were not synced."""
        with self._mutex:
            self._crashed = True
            return self._succeeded_by(self._disk.after_process_end())

    def _succeeded_by(self, disk: Disk) -> FaultyFiles:
        successor = FaultyFiles.__new__(FaultyFiles)
        successor._start(disk, self.seed, self.cold_read_share)
        return successor

    # For tests: read and damage files without faults, and without entries in the trace.

    def content(self, path: Path) -> bytes:
        """Return the content that a read would return."""
        with self._mutex:
            return bytes(self._disk.file_at(path).content)

    def durable_content(self, path: Path) -> bytes | None:
        """Return the synced content, which a power loss does not change unless it was overwritten after the sync.

        Returns None if the name of the file is not durable.
        """
        with self._mutex:
            node = self._disk.durable_file_at(path)
            return None if node is None else bytes(node.durable)

    def damage(self, path: Path, position: int, data: bytes) -> None:
        """Overwrite bytes of a file, on the disk and in the cache."""
        with self._mutex:
            node = self._disk.file_at(path)
            for content in (node.content, node.durable):
                end = min(position + len(data), len(content))
                content[position:end] = data[: max(0, end - position)]

    def cut(self, path: Path, size: int) -> None:
        """Shorten a file, on the disk and in the cache."""
        with self._mutex:
            node = self._disk.file_at(path)
            for content in (node.content, node.durable):
                resize(content, min(size, len(content)))
            node.changes.clear()

    def write_out(self, target: Path) -> None:
        """Copy all files, with the content that reads would return, to a real directory."""
        with self._mutex:
            _write_out(self._disk.root, target)

    # The methods of headrace.files.Files.

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        with self._operation("create" if create else "open", path):
            node = self._disk.create(path) if create else self._disk.file_at(path)
            node.handles += 1
            return FaultyFile(self, path, node)

    def exists(self, path: Path) -> bool:
        with self._mutex:
            self._check_alive()
            try:
                return self._disk.node_at(path) is not None
            except (FileNotFoundError, NotADirectoryError):
                return False

    def list(self, directory: Path) -> list[str]:
        with self._operation("list", directory):
            return sorted(self._disk.directory_at(directory).entries)

    def make_dir(self, directory: Path) -> None:
        with self._operation("make_dir", directory):
            self._disk.make_dir(directory)

    def rename(self, old: Path, new: Path) -> None:
        with self._operation("rename", old, target=new):
            self._disk.rename(old, new)

    def remove(self, path: Path) -> None:
        with self._operation("remove", path):
            self._disk.remove(path)

    def remove_dir(self, directory: Path) -> None:
        with self._operation("remove_dir", directory):
            self._disk.remove_dir(directory)

    def sync_dir(self, directory: Path) -> None:
        with self._operation("sync_dir", directory):
            self._disk.sync_dir(directory)

    def lock(self, path: Path) -> FaultyLock:
        with self._operation("lock", path):
            lock = FaultyLock(self)
            lock.node = self._disk.lock(path, lock)
            return lock

    # Applying faults to operations.

    @contextmanager
    def _operation(
        self, kind: str, path: Path, *, target: Path | None = None, offset: int = 0, size: int = 0
    ) -> Iterator[Sequence[Fault]]:
        """Run an operation while holding the lock. Yields the faults that the ``with`` block must apply."""
        operation = self._announce(kind, path, target, offset, size)
        with self._mutex:
            matching = self._matching_faults(operation)
            yield matching
            self._survive(matching)
        self._notify(operation, "after")

    def _announce(self, kind: str, path: Path, target: Path | None, offset: int, size: int) -> Operation:
        with self._mutex:
            self._check_alive()
            operation = Operation(self.changes + 1, kind, path, target, offset, size)
            if kind in CHANGES:
                self.changes += 1
            self.counts[kind] += 1
            self.trace.append(operation)
        self._notify(operation, "before")
        return operation

    def _matching_faults(self, operation: Operation) -> Sequence[Fault]:
        self._check_alive()
        matching = [fault for fault in self._faults if fault.applies_to(operation)]
        for fault in matching:
            if fault.action == "crash before":
                self._crashed = True
            elif fault.action == "fail":
                raise fault.as_error(operation)
        self._check_alive()
        return matching

    def _survive(self, matching: Sequence[Fault]) -> None:
        if any(fault.action == "crash after" for fault in matching):
            self._crashed = True
        self._check_alive()

    def _check_alive(self) -> None:
        if self._crashed:
            raise Crash("the process that used these files has ended")

    def _notify(self, operation: Operation, stage: Stage) -> None:
        if self.watch is not None:
            try:
                self.watch(operation, stage)
            except Crash:
                self._crashed = True
                raise

    def _sync(self, path: Path, node: FileNode) -> None:
        operation = self._announce("sync", path, None, 0, 0)
        with self._mutex:
            matching = self._matching_faults(operation)
            covered = node.last_change
        self._notify(operation, "during")
        with self._mutex:
            self._check_alive()
            for fault in matching:
                if fault.action == "forget":
                    node.forget(covered)
                    raise fault.as_error(operation)
            self._disk.sync(node, covered)
            self._survive(matching)
        self._notify(operation, "after")

    def _write(self, path: Path, node: FileNode, data: bytes, position: int) -> int:
        with self._operation("write", path, offset=position, size=len(data)) as matching:
            for fault in matching:
                if fault.action == "short" and data:
                    size = fault.written_bytes
                    data = data[: self._disk.rng.randrange(len(data)) if size is None else size]
            return self._disk.write(path, node, data, position)

    def _truncate(self, path: Path, node: FileNode, size: int) -> None:
        with self._operation("truncate", path, size=size):
            self._disk.truncate(node, size)

    def _read(self, path: Path, node: FileNode, size: int, position: int) -> bytes:
        with self._operation("read", path, offset=position, size=size):
            return bytes(node.content[position : position + size])

    def _is_cold(self) -> bool:
        return self.cold_read_share > 0 and self._cold_reads.random() < self.cold_read_share

    def _close(self, node: FileNode) -> None:
        with self._mutex:
            if not self._crashed:
                self._disk.close(node)

    def _unlock(self, lock: FaultyLock) -> None:
        with self._mutex:
            if lock.node is not None and lock.node.lock_holder is lock:
                lock.node.lock_holder = None


class FaultyFile:
    """Implements ``headrace.files.File``."""

    def __init__(self, files: FaultyFiles, path: Path, node: FileNode) -> None:
        self._files = files
        self._path = path
        self._node: FileNode | None = node

    @property
    def path(self) -> Path:
        return self._path

    def pwrite(self, data: Sequence[Buffer], position: int) -> int:
        node = self._open_node()
        if position < 0:
            raise os_error(errno.EINVAL, self._path)
        return self._files._write(self._path, node, b"".join(data), position)

    def pread(self, size: int, position: int) -> bytes:
        node = self._open_node()
        if position < 0:
            raise os_error(errno.EINVAL, self._path)
        return self._files._read(self._path, node, size, position)

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        return None if self._files._is_cold() else self.pread(size, position)

    def sync(self) -> None:
        self._files._sync(self._path, self._open_node())

    def truncate(self, size: int) -> None:
        node = self._open_node()
        if size < 0:
            raise os_error(errno.EINVAL, self._path)
        self._files._truncate(self._path, node, size)

    def size(self) -> int:
        node = self._open_node()
        self._files._check_alive()
        return len(node.content)

    def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            self._files._close(node)

    def _open_node(self) -> FileNode:
        if self._node is None:
            raise os_error(errno.EBADF, self._path)
        return self._node


class FaultyLock:
    """Implements ``headrace.files.Lock``."""

    def __init__(self, files: FaultyFiles) -> None:
        self._files = files
        self.node: FileNode | None = None

    def release(self) -> None:
        self._files._unlock(self)


def _write_out(directory: Directory, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, node in directory.entries.items():
        if isinstance(node, Directory):
            _write_out(node, target / name)
        else:
            (target / name).write_bytes(node.content)
