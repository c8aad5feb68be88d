"""The synced mark: a durable note of how far a partition is known to be on disk.

Layout of the file ``mark``: two slots, at byte 0 and at byte 4096, each of 56 bytes, big-endian:

    0   8  magic "HRMARK01"
    8   8  sequence         the slot with the higher sequence is the current one
    16  8  start offset     the first offset that may be read; what is below was deleted
    24  8  synced offset    every offset below it was on disk before this slot was written
    32  8  segment          base offset of the segment file that holds the end of the synced bytes
    40  8  position         bytes of that file which are synced
    48  4  reserved, zero
    52  4  CRC-32C of bytes 0 to 51

Invariant: a slot is written only after the sync it tells of has returned, so any slot that reads back is
true, however old. Damage below the mark is corruption and is reported; what lies above it was never
acknowledged by a sync and may be cut.

Only one slot is ever in danger: writes go to the same one until a sync has made it durable, and only then to
the other. So a crash can tear the slot being written, while the other one, a sector or more away, is whole and
only says less. The file takes its name with both slots durable. Two slots that fail their check mean damage,
not a crash.

Where a slot is damaged later, the other one counts, and it may be the older one. It has to be true then, too: before a
file is removed that it may lead to, both slots are made to say so (``settle``).
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from headrace.checksum import crc32c
from headrace.errors import DamagedState
from headrace.files import File, Files
from headrace.log.segment import write_whole

__all__ = ["MARK_NAME", "Mark", "MarkFile"]

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

    def joined(self, other: Mark) -> Mark:
        """What both say together: the later start, and the farther of the two synced ends."""
        start = max(self.start_offset, other.start_offset)
        # At the border between two files the later one counts: the earlier may be gone.
        farther = max(other, self, key=lambda mark: (mark.synced_offset, mark.segment))
        return Mark(start, farther.synced_offset, farther.segment, farther.position)


class MarkFile:
    """Keeps the mark of one partition; opened for writing only when the mark first moves."""

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
        self._one_sync = threading.Lock()
        self.unsynced = False

    @classmethod
    def create(cls, files: Files, directory: Path, mark: Mark) -> MarkFile:
        """Make the file with both slots durable; the caller syncs the directory."""
        self = cls(files, directory)
        padding = bytes(_SLOT_DISTANCE - _SLOT.size - _CRC.size)
        write_whole(files, self._path, _pack(1, mark) + padding + _pack(2, mark))
        self._sequence, self._newest = 2, mark
        self._file = files.open(self._path)
        return self

    def load(self) -> Mark | None:
        """The newest whole slot; ``None`` where there is no file; ``DamagedState`` where no slot is whole."""
        if not self._files.exists(self._path):
            return None
        file = self._files.open(self._path)
        try:
            raw = file.pread(_SLOT_DISTANCE + _SLOT.size + _CRC.size, 0)
        finally:
            file.close()
        best: Mark | None = None
        for number in (0, 1):
            at = number * _SLOT_DISTANCE
            slot = _parse(raw[at : at + _SLOT.size + _CRC.size])
            if slot is not None and slot[0] > self._sequence:
                self._sequence, best = slot
                self._slot = 1 - number
        self._newest = best
        if best is None:
            raise DamagedState(
                f"no slot of {self._path} reads back",
                detail="without the mark nobody can tell a torn tail from damaged data",
                hint="restore the file from a backup",
            )
        return best

    def write(self, mark: Mark) -> None:
        """Put the mark into the slot that may be lost; not durable until ``sync``, and harmless if it never is.

        A sync in its thread and a deletion beside it may both have something newer to say: neither takes the
        other's word back.
        """
        with self._lock:
            self._newest = self._newest.joined(mark) if self._newest else mark
            self.unsynced = True
            # While a sync is under way, and before the first one, both slots must stay as they are: what is said now
            # is put with the next sync, and so is what cannot be put now.
            if self._file is not None and not self._syncing:
                self._put(self._file, self._newest)

    def _put(self, file: File, mark: Mark) -> None:
        slot = _pack(self._sequence + 1, mark)
        taken = file.pwrite([slot], _SLOT_DISTANCE * self._slot)
        if taken != len(slot):
            raise OSError(f"short write of the mark {self._path}: {taken} of {len(slot)} bytes")
        self._sequence += 1
        self._written = mark

    def sync(self) -> None:
        """Make the newest mark durable. After a failure it is written again with the next one."""
        with self._one_sync:
            with self._lock:
                mark = self._newest
                if not self.unsynced or mark is None:
                    return
                file = self._opened()
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
        """Let both slots say at least this, durably: before a file goes that one of them may lead to."""
        for _ in range(2):
            self.write(mark)
            self.sync()

    def _opened(self) -> File:
        if self._file is None:
            file = self._files.open(self._path)
            try:
                # The process before this one may have left a slot to the page cache. Both must be safe to begin with.
                file.sync()
            except OSError:
                file.close()
                raise
            self._file = file
        return self._file

    def close(self) -> None:
        with self._one_sync, self._lock:
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
