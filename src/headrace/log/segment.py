"""One segment: a file of record batches, back to back as they were acknowledged, named by its first offset.

``<base offset, 20 digits>.log`` holds nothing but batches; its ``.index`` can always be made again. Files are
opened when first used. A segment that is being read or synced in another thread is pinned, so that its
descriptor is not closed, and another file's given the same number, under that thread's hands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headrace.errors import StorageError
from headrace.files import File, Files
from headrace.log.index import SparseIndex, load_columns, load_facts
from headrace.log.scan import ReadableFile, find_whole_batch, is_followed, scan_headers

__all__ = [
    "INDEX_SUFFIX",
    "LOG_SUFFIX",
    "ReadableSegment",
    "Segment",
    "build_index",
    "log_name",
    "write_whole",
]

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"


def log_name(base_offset: int) -> str:
    return f"{base_offset:020d}{LOG_SUFFIX}"


class ReadableSegment(Protocol):
    """What reading needs of a segment: on disk, or in the archive (see ``archived_segment``)."""

    base_offset: int
    index: SparseIndex
    """Its facts; ``loaded_index`` has the columns as well."""

    @property
    def is_archived(self) -> bool:
        """Whether reading has to wait for the archive: reads then belong in a thread, the index included."""

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
        self._is_given_up = False

    @property
    def size(self) -> int:
        return self.index.size

    @property
    def end_offset(self) -> int:
        return self.index.end_offset

    @property
    def file(self) -> File:
        if self._file is None:
            if self._is_given_up:
                raise StorageError(f"{self.path} is being removed with its topic")
            self._file = self._files.open(self.path)
        return self._file

    def create(self) -> None:
        """Make the empty file; a leftover of the same name, from a roll that a crash cut short, is replaced."""
        if self._files.exists(self.path):
            self._files.remove(self.path)
        self._file = self._files.open(self.path, create=True)

    def load_index(self) -> bool:
        """Take the index's facts from its file; ``False`` if it is missing or damaged."""
        index = load_facts(self._files, self.index_path, self.base_offset)
        if index is None:
            return False
        self.index = index
        return True

    def loaded_index(self, interval: int) -> SparseIndex:
        self.ensure_columns(interval)
        return self.index

    def ensure_columns(self, interval: int) -> None:
        """Read the index's columns if they are not in memory; where they are damaged, make them again."""
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
        """Take the names away; who has the file open reads on."""
        for path in (self.index_path, self.path):
            if self._files.exists(path):
                self._files.remove(path)

    def pin(self) -> File:
        """Keep the file open until ``unpin``, for a thread that is about to use it."""
        file = self.file
        # Counted when it is open: what could not be opened has nobody who gives it back.
        self._pins += 1
        return file

    def unpin(self) -> None:
        self._pins -= 1
        if self._closing and not self._pins:
            self.close()

    def give_up(self) -> None:
        """Close it for good, with its topic: a reader that comes late would open the file, and nobody close it."""
        self._is_given_up = True
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
    """Replace a file by new content which is durable before it takes the name; the caller syncs the
    directory.
    """
    fresh = path.with_name(path.name + ".new")
    if files.exists(fresh):
        files.remove(fresh)
    file = files.open(fresh, create=True)
    try:
        taken = file.pwrite([data], 0)
        if taken != len(data):
            raise OSError(f"short write of {fresh}: {taken} of {len(data)} bytes")
        file.sync()
    finally:
        file.close()
    files.rename(fresh, path)


def build_index(
    file: ReadableFile, base_offset: int, interval: int, end_position: int, end_offset: int
) -> SparseIndex:
    """Make the index from the log's first ``end_position`` bytes, stepping over damage to the next whole batch."""
    index = SparseIndex(base_offset, base_offset)
    position = 0
    expected = base_offset
    while position < end_position:
        for position_found, header in scan_headers(file, position, end_position):
            if header.base_offset != expected or header.next_offset > end_offset:
                break
            expected = header.next_offset
            index.add(
                header.base_offset,
                header.next_offset,
                position_found,
                header.size,
                header.max_timestamp,
                interval,
            )
            position = position_found + header.size
        if position >= end_position:
            break
        resumed = find_whole_batch(file, position + 1, end_position, index.end_offset, end_offset)
        while resumed is not None and not is_followed(
            file, resumed[0] + resumed[1].size, end_position, resumed[1].next_offset, end_offset
        ):
            resumed = find_whole_batch(file, resumed[0] + 1, end_position, index.end_offset, end_offset)
        if resumed is None:
            break
        position, expected = resumed[0], resumed[1].base_offset
        index.next_entry_at = position
    index.end_offset = end_offset
    index.size = end_position
    return index
