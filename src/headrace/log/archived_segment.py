"""A segment whose files are in the archive: read by ranges, in threads, and never written.

Its facts are in the partition's list of what is archived (see ``archive``), so knowing that it exists takes no look at
the archive. Any number of threads may read it, and none of them leaves a file open: each read opens the log and closes
it, so that the event loop never waits for a mount that does not answer, and descriptors are held by reads only. Its
index is kept in memory for all partitions together, within a limit, and thinned where it has many entries.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import ArchiveUnavailable
from headrace.log.archive_store import ArchivePlace
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


def log_file(place: ArchivePlace, base_offset: int) -> str:
    return place.file_name(log_name(base_offset))


def index_file(place: ArchivePlace, base_offset: int) -> str:
    return place.file_name(log_name(base_offset).removesuffix(LOG_SUFFIX) + INDEX_SUFFIX)


class ArchivedSegment:
    is_archived = True

    def __init__(self, place: ArchivePlace, entry: Entry) -> None:
        self.entry = entry
        self.base_offset = entry.base_offset
        self.index = SparseIndex(
            entry.base_offset, entry.end_offset, entry.size, entry.max_timestamp, loaded=False
        )
        self.path = place.store.location(log_file(place, entry.base_offset))
        self._place = place

    @property
    def size(self) -> int:
        return self.entry.size

    @property
    def end_offset(self) -> int:
        return self.entry.end_offset

    @property
    def file(self) -> ReadableFile:
        return _OpenedPerRead(self)

    def open_file(self) -> _Translated:
        """For a reader that reads much of it, and closes it."""
        try:
            return _Translated(self._place.store.open(log_file(self._place, self.base_offset)), self)
        except OSError as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: OSError) -> ArchiveUnavailable:
        return ArchiveUnavailable(
            self.path, self.base_offset, self.end_offset, str(error), self._place.store.advice
        )

    def loaded_index(self, interval: int) -> SparseIndex:
        indexes = self._place.indexes
        index = indexes.get(self.path)
        if index is None:
            index = self._read_index() or self._build_index(interval)
            indexes.put(self.path, index, _ENTRY_BYTES * len(index.offsets))
        return index

    def _read_index(self) -> SparseIndex | None:
        """``None`` where the archive has none that fits."""
        name = index_file(self._place, self.base_offset)
        try:
            file = self._place.store.open(name)
            try:
                index = read_thinned(file, self.base_offset, INDEX_ENTRIES_MAX)
            finally:
                file.close()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.unavailable(error) from error
        fits = index is not None and (index.end_offset, index.size) == (self.end_offset, self.size)
        return index if fits else None

    def _build_index(self, interval: int) -> SparseIndex:
        interval = max(interval, self.size // INDEX_ENTRIES_MAX)
        file = self.open_file()
        try:
            return build_index(file, self.base_offset, interval, self.size, self.end_offset)
        finally:
            file.close()

    def pin(self) -> None:
        """Nothing is open that could be closed meanwhile."""

    def unpin(self) -> None:
        """See ``pin``."""


class _OpenedPerRead:
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

    def pread_ready(self, size: int, position: int) -> bytes | bytearray | None:
        return None

    def close(self) -> None:
        """Nothing is open."""


class _Translated:
    """A file of the archive, whose errors name the offsets that cannot be had."""

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
                # Not the end of the log: an object in its midst is missing, or the file was cut.
                raise FileNotFoundError(f"it has {len(data)} of {expected} bytes from byte {position} on")
            return data
        except OSError as error:
            raise self._segment.unavailable(error) from error

    def pread_ready(self, size: int, position: int) -> bytes | bytearray | None:
        return None

    def close(self) -> None:
        self._file.close()
