"""One segment: a file of adjacent record batches, named by its first offset. ``Tail`` is the end of the log, which
writes to the active segment.

``<base offset, 20 digits>.log`` contains only batches. Its ``.index`` can always be rebuilt. Files are opened on first
use. A segment that another thread reads or syncs is pinned: its file descriptor stays open until the thread is done.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Protocol

from headrace.errors import PartitionFenced, StorageError
from headrace.files import Buffer, File, Files
from headrace.log.config import LogConfig
from headrace.log.index import SparseIndex, load_columns, load_header
from headrace.log.scan import ReadableFile, find_whole_batch, is_followed, scan_headers
from headrace.records import BatchHeader
from headrace.records.batch import PREFIX

__all__ = [
    "INDEX_SUFFIX",
    "LOG_SUFFIX",
    "ReadableSegment",
    "Segment",
    "Tail",
    "build_index",
    "log_name",
    "write_whole",
]

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"


def log_name(base_offset: int) -> str:
    return f"{base_offset:020d}{LOG_SUFFIX}"


class ReadableSegment(Protocol):
    """A segment that can be read, on disk or in the archive (``archived_segment``)."""

    base_offset: int
    index: SparseIndex
    """The index of the segment, possibly without its entries. ``loaded_index`` returns it with the entries."""

    @property
    def is_archived(self) -> bool:
        """Whether reads must wait for the archive. If so, run them in a thread, including ``loaded_index``."""

    @property
    def path(self) -> Path | str: ...
    @property
    def size(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def file(self) -> ReadableFile: ...
    def loaded_index(self, interval: int) -> SparseIndex: ...
    def pin(self) -> object: ...
    def unpin(self) -> None: ...


class Segment:
    is_archived = False

    def __init__(
        self, files: Files, directory: Path, base_offset: int, index: SparseIndex | None = None
    ) -> None:
        self.base_offset = base_offset
        self.path = directory / log_name(base_offset)
        self.index_path = self.path.with_suffix(INDEX_SUFFIX)
        self.index = index or SparseIndex(base_offset, base_offset)
        self.dirty = False
        self.created_ms = 0
        self._files = files
        self._file: File | None = None
        self._pins = 0
        self._closing = False
        self._is_closed_permanently = False

    @property
    def size(self) -> int:
        return self.index.size

    @property
    def end_offset(self) -> int:
        return self.index.end_offset

    @property
    def file(self) -> File:
        if self._file is None:
            if self._is_closed_permanently:
                raise StorageError(f"{self.path} is being removed with its topic")
            self._file = self._files.open(self.path)
        return self._file

    def create(self) -> None:
        """Create the empty file. Replace a file that a crash left behind while the segment was being created."""
        if self._files.exists(self.path):
            self._files.remove(self.path)
        self._file = self._files.open(self.path, create=True)

    def load_index(self) -> bool:
        """Read the index without its entries; ``False`` if the index file is missing or damaged."""
        index = load_header(self._files, self.index_path, self.base_offset)
        if index is None:
            return False
        self.index = index
        return True

    def loaded_index(self, interval: int) -> SparseIndex:
        self.ensure_columns(interval)
        return self.index

    def ensure_columns(self, interval: int) -> None:
        """Load the index entries unless they are in memory; rebuild the index if its file is missing or damaged."""
        if not self.index.loaded and not load_columns(self._files, self.index_path, self.index):
            self.rebuild_index(interval, self.index.size, self.index.end_offset)

    def rebuild_index(self, interval: int, end_position: int, end_offset: int) -> None:
        self.index = build_index(self.file, self.base_offset, interval, end_position, end_offset)

    def write_index(self) -> None:
        write_whole(self._files, self.index_path, self.index.dump())

    def remove(self) -> None:
        self.close()
        self.remove_files()

    def remove_files(self) -> None:
        """Remove the files. A reader that has a file open can continue."""
        for path in (self.index_path, self.path):
            if self._files.exists(path):
                self._files.remove(path)

    def pin(self) -> File:
        """Keep the file open until ``unpin``, for a thread that is about to use it."""
        file = self.file
        # Count the pin only after the file is open: a caller whose pin failed does not unpin.
        self._pins += 1
        return file

    def unpin(self) -> None:
        self._pins -= 1
        if self._closing and not self._pins:
            self.close()

    def close_permanently(self) -> None:
        """Close the segment permanently, because its topic is deleted. A late reader must not open the file again."""
        self._is_closed_permanently = True
        self.close()

    def close(self) -> None:
        if self._pins:
            self._closing = True
            return
        self._closing = False
        if self._file is not None:
            self._file.close()
            self._file = None


def write_whole(files: Files, path: Path, data: bytes) -> None:
    """Replace a file atomically: sync the new content, then rename it. The caller must sync the directory."""
    fresh = path.with_name(path.name + ".new")
    if files.exists(fresh):
        files.remove(fresh)
    file = files.open(fresh, create=True)
    try:
        written = file.pwrite([data], 0)
        if written != len(data):
            raise OSError(f"short write of {fresh}: {written} of {len(data)} bytes")
        file.sync()
    finally:
        file.close()
    files.rename(fresh, path)


def build_index(
    file: ReadableFile, base_offset: int, interval: int, end_position: int, end_offset: int
) -> SparseIndex:
    """Build the index from the first ``end_position`` bytes of the log file. After damage, continue at the next intact
    batch.
    """
    index = SparseIndex(base_offset, base_offset)
    position = 0
    expected = base_offset
    while position < end_position:
        for batch_position, header in scan_headers(file, position, end_position):
            if header.base_offset != expected or header.next_offset > end_offset:
                break
            expected = header.next_offset
            index.add(
                header.base_offset,
                header.next_offset,
                batch_position,
                header.size,
                header.max_timestamp,
                interval,
            )
            position = batch_position + header.size
        if position >= end_position:
            break
        intact = find_whole_batch(file, position + 1, end_position, index.end_offset, end_offset)
        while intact is not None and not is_followed(
            file, intact[0] + intact[1].size, end_position, intact[1].next_offset, end_offset
        ):
            intact = find_whole_batch(file, intact[0] + 1, end_position, index.end_offset, end_offset)
        if intact is None:
            break
        position, expected = intact[0], intact[1].base_offset
        index.next_entry_at = position
    index.end_offset = end_offset
    index.size = end_position
    return index


_log = logging.getLogger("headrace.log")
_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OFFSETS_MAX = 2**31 - 1


class Tail:
    """The end of a partition's log: the active segment, and whether it accepts writes.

    A batch is appended with one write. The broker sets only its first sixteen bytes (offset, length and epoch). After a
    failed write the torn bytes are truncated, so that the next write begins at the end of a complete batch. If the
    truncation fails, or the error is not a full disk, the tail is fenced: it refuses writes.

    After a full disk, the next write removes the fence if it can truncate the torn bytes. Any other fence remains until
    the broker restarts, because only a start checks what is on disk.
    """

    def __init__(self, files: Files, directory: Path, active: Segment) -> None:
        self.active = active
        self.fenced: str | None = None
        self._files = files
        self._directory = directory
        self._can_repair = False
        self._is_failing = False

    @property
    def needs_restart(self) -> bool:
        """Whether the tail is fenced until the broker restarts."""
        return self.fenced is not None and not self._can_repair

    def is_full(self, size: int, end_offset: int, now_ms: int, config: LogConfig) -> bool:
        """Whether a batch of ``size`` bytes needs a new segment."""
        active = self.active
        filled = active.size
        return filled > 0 and (
            filled + size > config.segment_bytes
            or now_ms - active.created_ms >= config.roll_ms
            or end_offset - active.base_offset >= _OFFSETS_MAX
        )

    def write(self, batch: Buffer, header: BatchHeader, offset: int, leader_epoch: int) -> int:
        """Append the batch at ``offset``; returns its position in the file."""
        if self.fenced is not None:
            self.repair()
        active, size = self.active, header.size
        position = active.size
        # Only the offset and the epoch change. Both are in the first sixteen bytes, which the CRC does not cover.
        prefix = PREFIX.pack(offset, header.length, leader_epoch)
        try:
            written = active.file.pwrite([prefix, memoryview(batch)[PREFIX.size :]], position)
        except OSError as error:
            raise self._failed(str(error), can_repair=error.errno in _SPACE_ERRORS) from error
        if written != size:
            raise self._failed(f"short write: {written} of {size} bytes", can_repair=True)
        if self._is_failing:
            self._is_failing = False
            _log.info("the partition in %s accepts writes again", self._directory)
        return position

    def roll(self, offset: int, now_ms: int) -> Segment:
        """Begin a new segment at ``offset``."""
        if self.fenced is not None:
            self.repair()
        fresh = Segment(self._files, self._directory, offset)
        fresh.created_ms = now_ms
        try:
            fresh.create()
        except OSError as error:
            raise self._failed(
                f"cannot create the next segment: {error}", can_repair=error.errno in _SPACE_ERRORS
            ) from error
        self.active = fresh
        return fresh

    def fence_until_restart(self, reason: str) -> None:
        """Refuse writes until the broker restarts."""
        self.fenced = reason
        self._can_repair = False

    def repair(self) -> None:
        """Truncate torn bytes, so that the next write begins at the end of a complete batch.

        Raises ``PartitionFenced`` if the truncation fails or the fence is permanent.
        """
        if self.fenced is None:
            return
        active = self.active
        if self._can_repair:
            try:
                if active.file.size() > active.size:
                    active.file.truncate(active.size)
            except OSError as error:
                self.fenced = f"{active.path}: cannot truncate torn bytes: {error}"
            else:
                self.fenced = None
                return
        raise PartitionFenced(
            f"the partition in {self._directory} refuses writes: {self.fenced}",
            detail="acknowledged records remain readable",
            hint="check the disk, then restart the broker: it continues after the last successful sync",
        )

    def _failed(self, reason: str, *, can_repair: bool) -> PartitionFenced:
        self.fenced = f"{self.active.path}: {reason}"
        self._can_repair = can_repair
        failure = PartitionFenced(
            f"nothing was written to {self._directory}: {reason}",
            hint="free disk space; writes then succeed again, and acknowledged records remain readable",
        )
        try:
            self.repair()
        except PartitionFenced as fenced:
            failure = fenced
        # Log only the first failed write, until a write succeeds again.
        if not self._is_failing:
            self._is_failing = True
            _log.error("%s", failure)
        return failure
