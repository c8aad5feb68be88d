"""A segment whose files are in the archive. It is read-only, and read in threads.

The partition's list of archived segments (``archive``) contains the size and the offsets of the segment, so opening a
partition does not need the archive. Any number of threads may read a segment. Each read opens and closes the log file,
so that the event loop never waits for a mount that hangs, and file descriptors are used only during reads. All
partitions share one cache of indexes. A very large index is loaded with only every n-th entry.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import ArchiveUnavailable
from headrace.log.archive_store import ArchiveLocation
from headrace.log.index import SparseIndex, read_thinned
from headrace.log.scan import ReadableFile
from headrace.log.segment import INDEX_SUFFIX, LOG_SUFFIX, build_index, log_name

__all__ = ["ArchivedSegment", "Entry", "index_file", "log_file"]

INDEX_ENTRIES_MAX = 1 << 16
_ENTRY_BYTES = 24


class Entry(NamedTuple):
    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int


def log_file(location: ArchiveLocation, base_offset: int) -> str:
    return location.file_name(log_name(base_offset))


def index_file(location: ArchiveLocation, base_offset: int) -> str:
    return location.file_name(log_name(base_offset).removesuffix(LOG_SUFFIX) + INDEX_SUFFIX)


class ArchivedSegment:
    is_archived = True

    def __init__(self, location: ArchiveLocation, entry: Entry) -> None:
        self.entry = entry
        self.base_offset = entry.base_offset
        self.index = SparseIndex(
            entry.base_offset, entry.end_offset, entry.size, entry.max_timestamp, loaded=False
        )
        self.path = location.store.location(log_file(location, entry.base_offset))
        self._location = location

    @property
    def size(self) -> int:
        return self.entry.size

    @property
    def end_offset(self) -> int:
        return self.entry.end_offset

    @property
    def file(self) -> ReadableFile:
        return _FileOpenedPerRead(self)

    def open_file(self) -> _ArchivedFile:
        """Open the log file for many reads. The caller must close it."""
        try:
            return _ArchivedFile(self._location.store.open(log_file(self._location, self.base_offset)), self)
        except OSError as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: OSError) -> ArchiveUnavailable:
        return ArchiveUnavailable(
            self.path, self.base_offset, self.end_offset, str(error), self._location.store.advice
        )

    def loaded_index(self, interval: int) -> SparseIndex:
        indexes = self._location.indexes
        index = indexes.get(self.path)
        if index is None:
            index = self._read_index() or self._build_index(interval)
            indexes.put(self.path, index, _ENTRY_BYTES * len(index.offsets))
        return index

    def _read_index(self) -> SparseIndex | None:
        """Load the index from the archive; ``None`` if it is missing, damaged or does not match the segment."""
        name = index_file(self._location, self.base_offset)
        try:
            file = self._location.store.open(name)
            try:
                index = read_thinned(file, self.base_offset, INDEX_ENTRIES_MAX)
            finally:
                file.close()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.unavailable(error) from error
        matches = index is not None and (index.end_offset, index.size) == (self.end_offset, self.size)
        return index if matches else None

    def _build_index(self, interval: int) -> SparseIndex:
        interval = max(interval, self.size // INDEX_ENTRIES_MAX)
        file = self.open_file()
        try:
            return build_index(file, self.base_offset, interval, self.size, self.end_offset)
        finally:
            file.close()

    def pin(self) -> None:
        """Do nothing: an archived segment has no open file that could be closed."""

    def unpin(self) -> None:
        """Do nothing, like ``pin``."""


class _FileOpenedPerRead:
    def __init__(self, segment: ArchivedSegment) -> None:
        self._segment = segment

    @property
    def path(self) -> str:
        return self._segment.path

    def pread(self, size: int, position: int) -> bytes:
        file = self._segment.open_file()
        try:
            return file.pread(size, position)
        finally:
            file.close()

    def pread_nowait(self, size: int, position: int) -> bytes | bytearray | None:
        return None

    def close(self) -> None:
        """Do nothing: each read closes its file."""


class _ArchivedFile:
    """A file in the archive. Its errors contain the offsets that cannot be read."""

    def __init__(self, file: ReadableFile, segment: ArchivedSegment) -> None:
        self._file = file
        self._segment = segment

    @property
    def path(self) -> str:
        return self._segment.path

    def pread(self, size: int, position: int) -> bytes:
        try:
            data = self._file.pread(size, position)
            expected = min(size, self._segment.size - position)
            if len(data) < expected:
                # The list of archived segments has a larger size: an object in the bucket is missing, or the file was
                # truncated.
                raise FileNotFoundError(f"read {len(data)} of {expected} bytes at byte {position}")
            return data
        except OSError as error:
            raise self._segment.unavailable(error) from error

    def pread_nowait(self, size: int, position: int) -> bytes | bytearray | None:
        return None

    def close(self) -> None:
        self._file.close()
