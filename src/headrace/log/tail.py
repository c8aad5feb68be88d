"""The end of a partition's log: the file that is written to, and whether it takes writes.

A batch goes behind the last one in one write, of which only the first sixteen bytes are the broker's. A write that
fails is cut off again, so that the next one begins at the end of a whole batch. Where even that fails, or the disk said
something else than that it is full, the tail is fenced: it says why, and takes no more.

A fence that a full disk can cause is lifted by the next write, if the torn bytes can be cut off then. Any other stays
until the next start, which alone can tell what the disk holds.
"""

from __future__ import annotations

import errno
import logging
import struct
from pathlib import Path

from headrace.errors import PartitionFenced
from headrace.files import Buffer, Files
from headrace.log.config import LogConfig
from headrace.log.segment import Segment
from headrace.records import BatchHeader

__all__ = ["Tail"]

_log = logging.getLogger("headrace.log")
_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PLACE = struct.Struct(">qii")
_OFFSETS_MAX = 2**31 - 1


class Tail:
    def __init__(self, files: Files, directory: Path, active: Segment) -> None:
        self.active = active
        self.fenced: str | None = None
        self._files = files
        self._directory = directory
        self._mendable = False
        self._in_trouble = False

    @property
    def is_lost(self) -> bool:
        """Fenced for good: only a new start can tell what the disk holds."""
        return self.fenced is not None and not self._mendable

    def is_full(self, size: int, end_offset: int, now_ms: int, config: LogConfig) -> bool:
        """Whether a batch of that size belongs into the next segment."""
        active = self.active
        filled = active.size
        return filled > 0 and (
            filled + size > config.segment_bytes
            or now_ms - active.created_ms >= config.roll_ms
            or end_offset - active.base_offset >= _OFFSETS_MAX
        )

    def write(self, batch: Buffer, header: BatchHeader, offset: int, leader_epoch: int) -> int:
        """Put the batch behind the last one, at that offset; returns its position."""
        if self.fenced is not None:
            self.mend()
        active, size = self.active, header.size
        position = active.size
        # Offset and epoch are the only bytes that change; they lie in the first sixteen, outside the CRC.
        place = _PLACE.pack(offset, header.length, leader_epoch)
        try:
            taken = active.file.pwrite([place, memoryview(batch)[_PLACE.size :]], position)
        except OSError as error:
            raise self._failed(str(error), mendable=error.errno in _SPACE_ERRORS) from error
        if taken != size:
            raise self._failed(f"short write: {taken} of {size} bytes were taken", mendable=True)
        if self._in_trouble:
            self._in_trouble = False
            _log.info("%s takes writes again", self._directory)
        return position

    def roll(self, offset: int, now_ms: int) -> Segment:
        """Go on in a new segment, which begins at that offset."""
        if self.fenced is not None:
            self.mend()
        fresh = Segment(self._files, self._directory, offset)
        fresh.created_ms = now_ms
        try:
            fresh.create()
        except OSError as error:
            raise self._failed(f"the next segment: {error}", mendable=error.errno in _SPACE_ERRORS) from error
        self.active = fresh
        return fresh

    def lose(self, reason: str) -> None:
        """Take no more writes before the next start."""
        self.fenced = reason
        self._mendable = False

    def mend(self) -> None:
        """Cut torn bytes off, so that the next write begins at the end of a whole batch; raises while that cannot
        be.
        """
        if self.fenced is None:
            return
        active = self.active
        if self._mendable:
            try:
                if active.file.size() > active.size:
                    active.file.truncate(active.size)
            except OSError as error:
                self.fenced = f"{active.path}: torn bytes cannot be cut: {error}"
            else:
                self.fenced = None
                return
        raise PartitionFenced(
            f"the partition in {self._directory} takes no writes: {self.fenced}",
            detail="what was acknowledged stays readable",
            hint="check the disk, then start the broker again: it goes on behind the last good sync",
        )

    def _failed(self, reason: str, *, mendable: bool) -> PartitionFenced:
        self.fenced = f"{self.active.path}: {reason}"
        self._mendable = mendable
        failure = PartitionFenced(
            f"nothing was written to {self._directory}: {reason}",
            hint="free some space; writes go on by themselves, and what was acknowledged stays readable",
        )
        try:
            self.mend()
        except PartitionFenced as fenced:
            failure = fenced
        # Once, however many writes are refused before one is taken again.
        if not self._in_trouble:
            self._in_trouble = True
            _log.error("%s", failure)
        return failure
