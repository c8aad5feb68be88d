"""Files in memory that lose, tear, forget and refuse, as disks do: for tests of what the log promises.

Without a fault they behave as the real ones. With a seed, the same operations meet the same fate:

    files = FaultyFiles(seed=7)
    files.fail("write", path="*.log", nth=3, error=errno.ENOSPC)
    …
    files = files.crash()       # power loss: another set of files, with what the disk could show
    files = files.restart()     # kill -9: all writes are there, open files and locks are gone

Crash at every operation until a run passes without one:

    for n in itertools.count(1):
        files = FaultyFiles(seed=n)
        fault = files.crash_at(n)
        with contextlib.suppress(Crash):
            run(files)
        if not fault.hits:
            break
        look_at(files.crash())

After a crash the old files refuse everything with ``Crash``, so that a thread left over from before cannot reach
the disk. All methods may be called from any thread; a write that begins after a sync has begun is not covered by it.
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

from headrace.testing.faults import CHANGES, Crash, Fault, Operation, Stage
from headrace.testing.faulty_content import FileNode, resize
from headrace.testing.faulty_disk import Directory, Disk, os_error

__all__ = ["Crash", "Fault", "FaultyFile", "FaultyFiles", "Operation"]

Buffer = bytes | bytearray | memoryview

HOME = Path("/disk")
TRACE_LENGTH_MAX = 100_000


class FaultyFiles:
    """The port ``headrace.files.Files``; ``home`` is a durable, empty directory to begin with."""

    def __init__(
        self,
        seed: int = 0,
        *,
        home: Path = HOME,
        syncs_are_ignored: bool = False,
        capacity_bytes: int | None = None,
        cold_read_share: float = 0.0,
    ) -> None:
        rng = random.Random(seed)  # noqa: S311
        disk = Disk(rng, syncs_are_ignored=syncs_are_ignored, capacity_bytes=capacity_bytes)
        disk.make_home(home)
        self._start(disk, seed, cold_read_share)

    def _start(self, disk: Disk, seed: int, cold_read_share: float) -> None:
        self.seed = seed
        self.cold_read_share = cold_read_share
        self.watch: Callable[[Operation, Stage], None] | None = None
        """Called around every operation, without a lock held; for a sync also while it is under way."""
        self.trace: deque[Operation] = deque(maxlen=TRACE_LENGTH_MAX)
        self.counts: Counter[str] = Counter()
        self.changes = 0
        self._disk = disk
        self._faults: builtins.list[Fault] = []
        self._mutex = threading.RLock()
        self._crashed = False
        self._cold_reads = random.Random(seed)  # noqa: S311

    # Faults, to be set up by the test.

    def fail(
        self,
        kind: str | None = None,
        *,
        path: str = "*",
        nth: int = 1,
        times: int | None = 1,
        error: int = errno.EIO,
    ) -> Fault:
        """Fail the nth matching operation; without a kind, of those that change something. It has no effect then."""
        return self._add(Fault("fail", kind, path, nth, times, error))

    def short_write(
        self, *, path: str = "*", nth: int = 1, times: int | None = 1, taken: int | None = None
    ) -> Fault:
        """Take only ``taken`` bytes of a write, or a random part of it."""
        return self._add(Fault("short", "write", path, nth, times, taken=taken))

    def forget_sync(
        self, *, path: str = "*", nth: int = 1, times: int | None = 1, error: int = errno.EIO
    ) -> Fault:
        """Fail a sync, and forget what it should have made durable: it reads back, but counts as clean from now on.

        A later sync succeeds and does not bring it back. So Linux behaves when a page could not be written.
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
        """End the process at the nth matching operation that changes something."""
        return self._add(Fault("crash before" if when == "before" else "crash after", kind, path, nth))

    def heal(self) -> None:
        """No more faults; what they did stays done. The disk is as large as it needs to be."""
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
        """Lose power now. Asked again, the same moment may show another outcome."""
        with self._mutex:
            self._crashed = True
            return self._succeeded_by(self._disk.after_power_loss())

    def restart(self) -> FaultyFiles:
        """Kill the process now: the disk's state, durable or not, is all there for the next one."""
        with self._mutex:
            self._crashed = True
            return self._succeeded_by(self._disk.after_process_end())

    def _succeeded_by(self, disk: Disk) -> FaultyFiles:
        successor = FaultyFiles.__new__(FaultyFiles)
        successor._start(disk, self.seed, self.cold_read_share)
        return successor

    # What a test may look at and damage, past all faults and without leaving a trace.

    def content(self, path: Path) -> bytes:
        """What a read would give."""
        with self._mutex:
            return bytes(self._disk.file_at(path).content)

    def durable_content(self, path: Path) -> bytes | None:
        """What will surely be there after a power loss, except for bytes overwritten since; None without a name."""
        with self._mutex:
            node = self._disk.durable_file_at(path)
            return None if node is None else bytes(node.durable)

    def damage(self, path: Path, position: int, data: bytes) -> None:
        """Put other bytes there, on the disk and in the cache."""
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
        """Copy everything that a read would give to a real directory, for other programs to look at."""
        with self._mutex:
            _write_out(self._disk.root, target)

    # The port.

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        with self._operation("create" if create else "open", path):
            node = self._disk.create(path) if create else self._disk.file_at(path)
            node.handles += 1
            return FaultyFile(self, path, node)

    def exists(self, path: Path) -> bool:
        with self._mutex:
            self._stay_alive()
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

    # How an operation meets its faults.

    @contextmanager
    def _operation(
        self, kind: str, path: Path, *, target: Path | None = None, offset: int = 0, size: int = 0
    ) -> Iterator[Sequence[Fault]]:
        """Everything around an operation. Its body runs under the lock, and gets the faults left for it to obey."""
        operation = self._announce(kind, path, target, offset, size)
        with self._mutex:
            struck = self._struck(operation)
            yield struck
            self._survive(struck)
        self._tell(operation, "after")

    def _announce(self, kind: str, path: Path, target: Path | None, offset: int, size: int) -> Operation:
        with self._mutex:
            self._stay_alive()
            operation = Operation(self.changes + 1, kind, path, target, offset, size)
            if kind in CHANGES:
                self.changes += 1
            self.counts[kind] += 1
            self.trace.append(operation)
        self._tell(operation, "before")
        return operation

    def _struck(self, operation: Operation) -> Sequence[Fault]:
        self._stay_alive()
        struck = [fault for fault in self._faults if fault.strikes(operation)]
        for fault in struck:
            if fault.action == "crash before":
                self._crashed = True
            elif fault.action == "fail":
                raise fault.as_error(operation)
        self._stay_alive()
        return struck

    def _survive(self, struck: Sequence[Fault]) -> None:
        if any(fault.action == "crash after" for fault in struck):
            self._crashed = True
        self._stay_alive()

    def _stay_alive(self) -> None:
        if self._crashed:
            raise Crash("the process that had these files has ended")

    def _tell(self, operation: Operation, stage: Stage) -> None:
        if self.watch is not None:
            try:
                self.watch(operation, stage)
            except Crash:
                self._crashed = True
                raise

    def _sync(self, path: Path, node: FileNode) -> None:
        operation = self._announce("sync", path, None, 0, 0)
        with self._mutex:
            struck = self._struck(operation)
            covered = node.last_change
        self._tell(operation, "during")
        with self._mutex:
            self._stay_alive()
            for fault in struck:
                if fault.action == "forget":
                    node.forget(covered)
                    raise fault.as_error(operation)
            self._disk.sync(node, covered)
            self._survive(struck)
        self._tell(operation, "after")

    def _write(self, path: Path, node: FileNode, data: bytes, position: int) -> int:
        with self._operation("write", path, offset=position, size=len(data)) as struck:
            for fault in struck:
                if fault.action == "short" and data:
                    taken = self._disk.rng.randrange(len(data)) if fault.taken is None else fault.taken
                    data = data[:taken]
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
    """The port ``headrace.files.File``."""

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

    def pread_ready(self, size: int, position: int) -> bytes | None:
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
        self._files._stay_alive()
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
    """The port ``headrace.files.Lock``."""

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
