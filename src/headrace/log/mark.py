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

A crash can tear the slot being written; the other one, a sector or more away, is still whole and only says
less. The slots are written in turn, so both are never in danger at once: two slots that fail their check mean
damage, not a crash.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from pathlib import Path

import crc32c

from headrace.errors import DamagedState
from headrace.files import File, Files

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
        self._newest: Mark | None = None
        self._lock = threading.Lock()
        self.unsynced = False

    @classmethod
    def create(cls, files: Files, directory: Path, mark: Mark) -> MarkFile:
        """Make the file and both slots durable; the caller syncs the directory."""
        self = cls(files, directory)
        if files.exists(self._path):
            files.remove(self._path)
        self._file = files.open(self._path, create=True)
        self.write(mark)
        self.write(mark)
        self.sync()
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
        for at in (0, _SLOT_DISTANCE):
            slot = _parse(raw[at : at + _SLOT.size + _CRC.size])
            if slot is not None and slot[0] > self._sequence:
                self._sequence, best = slot
        self._newest = best
        if best is None:
            raise DamagedState(
                f"no slot of {self._path} reads back",
                detail="without the mark nobody can tell a torn tail from damaged data",
                hint="restore the file from a backup",
            )
        return best

    def write(self, mark: Mark) -> None:
        """Put the mark into the older slot; not durable until ``sync``, and harmless if it never is.

        A sync in its thread and a deletion beside it may both have something newer to say: neither takes the
        other's word back.
        """
        with self._lock:
            self._write(self._newest.joined(mark) if self._newest else mark)

    def _write(self, mark: Mark) -> None:
        if self._file is None:
            self._file = self._files.open(self._path)
        sequence = self._sequence + 1
        body = _SLOT.pack(
            _MAGIC, sequence, mark.start_offset, mark.synced_offset, mark.segment, mark.position, 0
        )
        slot = body + _CRC.pack(crc32c.crc32c(body))
        taken = self._file.pwrite([slot], _SLOT_DISTANCE * (sequence & 1))
        if taken != len(slot):
            raise OSError(f"short write of the mark {self._path}: {taken} of {len(slot)} bytes")
        self._sequence = sequence
        self._newest = mark
        self.unsynced = True

    def sync(self) -> None:
        if self._file is not None:
            self.unsynced = False
            try:
                self._file.sync()
            except OSError:
                self.unsynced = True
                raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _parse(slot: bytes) -> tuple[int, Mark] | None:
    if len(slot) != _SLOT.size + _CRC.size:
        return None
    body = slot[: _SLOT.size]
    magic, sequence, start, synced, segment, position, _ = _SLOT.unpack(body)
    if magic != _MAGIC or _CRC.unpack_from(slot, _SLOT.size)[0] != crc32c.crc32c(body):
        return None
    return sequence, Mark(start, synced, segment, position)
