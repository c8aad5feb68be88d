"""The synced mark: the durable record of how much of a partition is known to be on disk.

Layout of the file ``mark``: two slots, at byte 0 and at byte 4096, each of 56 bytes, big-endian:

    0   8  magic "HRMARK01"
    8   8  sequence         the slot with the higher sequence is the current one
    16  8  start offset     the first offset that can be read; everything below was deleted
    24  8  synced offset    every offset below it was on disk before this slot was written
    32  8  segment          base offset of the segment file in which the synced bytes end
    40  8  position         number of synced bytes in that file
    48  4  reserved, zero
    52  4  CRC-32C of bytes 0 to 51

Invariant: a slot is written only after the sync that it describes has returned. So the content of a slot with a valid
checksum is always true, however old it is. Damage below the mark is corruption and is reported. No sync covered the
bytes above the mark, so a start may truncate them.

Only one slot is at risk at a time: writes go to the same slot until it is durable, and only then to the other slot.
A crash can tear only the slot being written. The other slot, at least one sector away, is intact but older. The file
gets its name when both slots are durable. So two slots with wrong checksums mean damage, not a crash.

If a slot is damaged later, a start uses the other slot, which may be the older one. It must still be true. So both
slots are updated before a file is removed that the older slot refers to (``settle``).
"""

from __future__ import annotations

import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.checksum import crc32c
from headrace.errors import DamagedState
from headrace.files import File, Files
from headrace.log.segment import Segment, write_whole

__all__ = ["MARK_NAME", "Mark", "MarkFile", "SyncJob"]

MARK_NAME = "mark"
_MAGIC = b"HRMARK01"
_SLOT = struct.Struct(">8sQqqqqI")
_CRC = struct.Struct(">I")
_SLOT_DISTANCE = 4096


@dataclass(frozen=True, slots=True)
class Mark:
    start_offset: int
    synced_offset: int
    segment: int
    position: int

    def merged(self, other: Mark) -> Mark:
        """Merge two marks: the greater start offset, and the greater synced offset with its segment and position."""
        start = max(self.start_offset, other.start_offset)
        # If the synced offsets are equal, prefer the later file: the earlier file may be removed.
        later = max(other, self, key=lambda mark: (mark.synced_offset, mark.segment))
        return Mark(start, later.synced_offset, later.segment, later.position)


class MarkFile:
    """The mark file of one partition. It is opened for writing only when the mark first changes."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / MARK_NAME
        self._file: File | None = None
        self._sequence = 0
        self._slot = 0
        self._newest: Mark | None = None
        self._written: Mark | None = None
        self._syncing = False
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self.unsynced = False

    @classmethod
    def create(cls, files: Files, directory: Path, mark: Mark) -> MarkFile:
        """Create the file with both slots durable. The caller must sync the directory."""
        self = cls(files, directory)
        padding = bytes(_SLOT_DISTANCE - _SLOT.size - _CRC.size)
        write_whole(files, self._path, _pack(1, mark) + padding + _pack(2, mark))
        self._sequence, self._newest = 2, mark
        self._file = files.open(self._path)
        return self

    def load(self) -> Mark | None:
        """Load the newest intact slot; ``None`` if the file does not exist. Raises ``DamagedState`` if both slots are
        damaged.
        """
        if not self._files.exists(self._path):
            return None
        file = self._files.open(self._path)
        try:
            raw = file.pread(_SLOT_DISTANCE + _SLOT.size + _CRC.size, 0)
        finally:
            file.close()
        newest: Mark | None = None
        for number in (0, 1):
            at = number * _SLOT_DISTANCE
            slot = _parse(raw[at : at + _SLOT.size + _CRC.size])
            if slot is not None and slot[0] > self._sequence:
                self._sequence, newest = slot
                self._slot = 1 - number
        self._newest = newest
        if newest is None:
            raise DamagedState(
                f"both slots of {self._path} are damaged",
                detail="without the mark the broker cannot distinguish a torn tail from damage",
                hint="restore the file from a backup",
            )
        return newest

    def write(self, mark: Mark) -> None:
        """Write the mark to the slot at risk. It is not durable until ``sync``; losing it before that is harmless.

        A sync thread and a deletion thread may both write. The marks are merged, so neither reverts the other.
        """
        with self._lock:
            self._newest = self._newest.merged(mark) if self._newest else mark
            self.unsynced = True
            # Both slots must remain unchanged while a sync runs, and before the file is opened. In these cases, and if
            # the write fails, the next sync writes this mark.
            if self._file is not None and not self._syncing:
                self._put(self._file, self._newest)

    def _put(self, file: File, mark: Mark) -> None:
        slot = _pack(self._sequence + 1, mark)
        written = file.pwrite([slot], _SLOT_DISTANCE * self._slot)
        if written != len(slot):
            raise OSError(f"short write of the mark {self._path}: {written} of {len(slot)} bytes")
        self._sequence += 1
        self._written = mark

    def sync(self) -> None:
        """Make the newest mark durable. After a failure, the next sync writes it again."""
        with self._sync_lock:
            with self._lock:
                mark = self._newest
                if not self.unsynced or mark is None:
                    return
                file = self._open_file()
                if self._written != mark:
                    self._put(file, mark)
                self._syncing = True
            try:
                file.sync()
            except OSError:
                with self._lock:
                    self._syncing, self._written = False, None
                raise
            with self._lock:
                self._syncing = self.unsynced = False
                self._slot = 1 - self._slot
                if self._newest is not None and self._newest != mark:
                    self.unsynced = True
                    self._put(file, self._newest)

    def settle(self, mark: Mark) -> None:
        """Update both slots durably, to at least this mark. Call this before removing a file that a slot may name."""
        for _ in range(2):
            self.write(mark)
            self.sync()

    def _open_file(self) -> File:
        if self._file is None:
            file = self._files.open(self._path)
            try:
                # The previous process may have left a slot only in the page cache. Both slots must be durable first.
                file.sync()
            except OSError:
                file.close()
                raise
            self._file = file
        return self._file

    def close(self) -> None:
        with self._sync_lock, self._lock:
            self.unsynced = False
            if self._file is not None:
                self._file.close()
                self._file = None


def _pack(sequence: int, mark: Mark) -> bytes:
    body = _SLOT.pack(_MAGIC, sequence, mark.start_offset, mark.synced_offset, mark.segment, mark.position, 0)
    return body + _CRC.pack(crc32c(body))


def _parse(slot: bytes) -> tuple[int, Mark] | None:
    if len(slot) != _SLOT.size + _CRC.size:
        return None
    body = slot[: _SLOT.size]
    magic, sequence, start, synced, segment, position, _ = _SLOT.unpack(body)
    if magic != _MAGIC or _CRC.unpack_from(slot, _SLOT.size)[0] != crc32c(body):
        return None
    return sequence, Mark(start, synced, segment, position)


@dataclass(slots=True)
class SyncJob:
    """One sync of a partition. It runs in a thread: it is the only part of an append that waits for the disk."""

    files: Files
    directory: Path | None
    segments: list[Segment]
    mark_file: MarkFile
    mark: Mark

    def run(self) -> None:
        """Sync the files, then the directory if it has a new file, then write the mark.

        Raises ``OSError`` if the batches may not be durable. A failed write of the mark raises no error: the older
        mark is still true, and the next sync of the mark retries the write and reports a failure.
        """
        for segment in self.segments:
            segment.file.sync()
        if self.directory is not None:
            self.files.sync_dir(self.directory)
        with suppress(OSError):
            self.mark_file.write(self.mark)
