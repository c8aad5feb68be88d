"""The archive of a partition: retention moves old segments there instead of deleting them.

    DIR/archived      the list of archived segments; big-endian:

    0   8  magic "HRARCH01"
    8   8  number of segments, n
    16     n times: base offset (8), end offset (8), bytes (8), greatest timestamp (8)
    …   4  CRC-32C of everything before

    DIR/archiving     the segment that is being moved; big-endian:

    0   8  magic "HRMOVE01"
    8   8  its base offset
    16  4  CRC-32C of everything before

    TOPIC/PARTITION/<offset>.log, .index     the unchanged files of a segment, in the archive

Invariant: ``archived`` lists a segment only after its files in the archive are complete and durable. A crash before the
segment is listed leaves an unused copy in the archive. ``archiving`` names this copy, so that it can be removed. After
the segment is listed, a crash may leave its local files. The next start removes them. ``archived`` and ``archiving``
are in the data directory, so a partition opens even while the archive is unavailable. Only reads of archived segments
then fail.

A thread moves or deletes segments. If its caller stops waiting for it, the caller calls ``interrupt``. After that, the
thread makes no changes and no further calls to the store, however long it waited for the archive. This is necessary
because the partition may have been opened again and may use its copies in the archive.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.checksum import crc32c
from headrace.errors import ArchiveUnavailable, DamagedState, StorageError
from headrace.files import File, Files
from headrace.log.archive_store import INDEX_BYTES_MAX, ArchiveLocation, ByteCache, MissingStore
from headrace.log.archived_segment import ArchivedSegment, Entry, index_file, log_file
from headrace.log.pace import Interrupted, Pace
from headrace.log.segment import Segment, write_whole

__all__ = ["ARCHIVED_NAME", "ARCHIVING_NAME", "Archive", "write_archived"]

ARCHIVED_NAME = "archived"
ARCHIVING_NAME = "archiving"
_MAGIC = b"HRARCH01"
_HEAD = struct.Struct(">8sQ")
_ENTRY = struct.Struct(">qqqq")
_MOVE_MAGIC = b"HRMOVE01"
_MOVE = struct.Struct(">8sq")
_CRC = struct.Struct(">I")
_CHUNK_BYTES = 1 << 20


class Archive:
    def __init__(self, files: Files, home: Path, location: ArchiveLocation | None) -> None:
        """``home`` is the partition's local directory. ``location`` is ``None`` if the broker has no archive."""
        self._files = files
        self._home = home
        self._location = location or ArchiveLocation(MissingStore(), home.name, ByteCache(INDEX_BYTES_MAX))
        self._change_lock = threading.Lock()
        self.segments: list[ArchivedSegment] = []
        self._bases: list[int] = []
        self.entries: list[Entry] = []
        self._set_entries(_load(files, home / ARCHIVED_NAME))
        self.unfinished = _load_unfinished(files, home / ARCHIVING_NAME)
        """The base offset of a segment whose move was interrupted, or ``None``. Its copy in the archive is unused."""
        if self.unfinished is not None and self.unfinished < self.end_offset:
            # The move was complete: ``archived`` already lists the segment.
            self.unfinished = None

    def _set_entries(self, entries: list[Entry]) -> None:
        open_segments = {segment.base_offset: segment for segment in self.segments}
        self.entries = entries
        self.segments = [
            open_segments.get(entry.base_offset) or ArchivedSegment(self._location, entry)
            for entry in entries
        ]
        self._bases = [entry.base_offset for entry in entries]

    @property
    def end_offset(self) -> int:
        """The offset after the last archived segment; -1 if the archive is empty."""
        return self.entries[-1].end_offset if self.entries else -1

    def find(self, offset: int) -> ArchivedSegment | None:
        index = bisect_right(self._bases, offset) - 1
        return self.segments[index] if index >= 0 else None

    # In a thread

    def check(self, stop: threading.Event) -> None:
        """Raise ``ArchiveUnavailable`` if the archive does not respond or lacks all of this partition's segments."""
        _check_stop(stop)
        try:
            names = self._location.store.list(self._location.name)
        except OSError as error:
            raise self._unavailable(str(error)) from error
        if self.entries and not names:
            raise self._unavailable(f"all {len(self.entries)} archived segments are missing")

    def copy(self, segment: Segment, pace: Pace, stop: threading.Event) -> Entry:
        """Copy the segment's files to the archive. They are unused until ``append_entry`` adds them to the list."""
        _check_stop(stop)
        _check_size(segment)
        self.remove_unfinished(stop)
        location, base = self._location, segment.base_offset
        body = _MOVE.pack(_MOVE_MAGIC, base)
        with self.change_lock(stop):
            self.unfinished = base
            write_whole(self._files, self._home / ARCHIVING_NAME, body + _CRC.pack(crc32c(body)))
            self._files.sync_dir(self._home)
        try:
            location.store.put(
                log_file(location, base), _chunks(segment.file, segment.size, pace, stop), segment.size
            )
            if self._files.exists(segment.index_path):
                self._put_index(segment, pace, stop)
            else:
                # Readers rebuild the missing index from the log. Delete the outdated index of an earlier move.
                _check_stop(stop)
                location.store.delete(index_file(location, base))
        except OSError as error:
            raise self._unavailable(str(error)) from error
        return Entry(base, segment.end_offset, segment.size, segment.index.max_timestamp)

    def _put_index(self, segment: Segment, pace: Pace, stop: threading.Event) -> None:
        file = self._files.open(segment.index_path)
        try:
            size = file.size()
            name = index_file(self._location, segment.base_offset)
            self._location.store.put(name, _chunks(file, size, pace, stop), size)
        finally:
            file.close()

    def append_entry(self, entry: Entry) -> list[Entry]:
        """Add the segment to the list of archived segments durably. Call this within ``change_lock``."""
        entries = [*self.entries, entry]
        write_archived(self._files, self._home, entries)
        with suppress(OSError):
            # A leftover ``archiving`` file is harmless: ``archived`` already lists its segment.
            self._files.remove(self._home / ARCHIVING_NAME)
        return entries

    def remove_unfinished(self, stop: threading.Event) -> None:
        """Remove the files that an interrupted move left in the archive."""
        base = self.unfinished
        if base is None:
            return
        with self.change_lock(stop):
            # After a disk error, the list on disk may contain the segment. Remove it there before removing its files.
            write_archived(self._files, self._home, self.entries)
        self._delete(base, stop)
        with self.change_lock(stop):
            if self._files.exists(self._home / ARCHIVING_NAME):
                self._files.remove(self._home / ARCHIVING_NAME)
            self.unfinished = None

    def drop_below(self, offset: int, stop: threading.Event) -> list[Entry]:
        """Remove the archived segments below ``offset``, the partition's start; returns the remaining entries."""
        kept = [entry for entry in self.entries if entry.end_offset > offset]
        if len(kept) == len(self.entries):
            return kept
        for entry in self.entries[: len(self.entries) - len(kept)]:
            self._delete(entry.base_offset, stop)
        with self.change_lock(stop):
            write_archived(self._files, self._home, kept)
        return kept

    def _delete(self, base_offset: int, stop: threading.Event) -> None:
        try:
            for name in (index_file(self._location, base_offset), log_file(self._location, base_offset)):
                _check_stop(stop)
                self._location.store.delete(name)
        except OSError as error:
            raise self._unavailable(str(error)) from error

    @contextmanager
    def change_lock(self, stop: threading.Event) -> Iterator[None]:
        """Hold the lock for changes to the partition's local files; raises ``Interrupted`` if ``stop`` is set."""
        with self._change_lock:
            if stop.is_set():
                raise Interrupted
            yield

    def _unavailable(self, reason: str) -> ArchiveUnavailable:
        store = self._location.store
        return ArchiveUnavailable(store.location(self._location.name), 0, 0, reason, store.advice)

    # In the event loop

    def interrupt(self, stop: threading.Event) -> None:
        """Stop the thread that uses this event. When this returns, the thread makes no further changes."""
        stop.set()
        with self._change_lock:
            return

    def adopt(self, entries: list[Entry]) -> None:
        """Use the list that ``append_entry`` or ``drop_below`` returned."""
        self._set_entries(entries)
        if self.unfinished is not None and self.unfinished < self.end_offset:
            self.unfinished = None


def write_archived(files: Files, home: Path, entries: Sequence[Entry]) -> None:
    body = _HEAD.pack(_MAGIC, len(entries)) + b"".join(_ENTRY.pack(*entry) for entry in entries)
    write_whole(files, home / ARCHIVED_NAME, body + _CRC.pack(crc32c(body)))
    files.sync_dir(home)


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted


def _check_size(segment: Segment) -> None:
    """Raise ``StorageError`` if the segment's file is too short. Checked before a large upload begins."""
    try:
        size = segment.file.size()
    except OSError as error:
        raise StorageError(f"cannot read {segment.path}: {error}") from error
    if size < segment.size:
        raise StorageError(f"{segment.path} has {size} bytes, expected {segment.size}")


def _chunks(source: File, size: int, pace: Pace, stop: threading.Event) -> Iterator[bytes]:
    position = 0
    while position < size:
        _check_stop(stop)
        try:
            chunk = source.pread(min(_CHUNK_BYTES, size - position), position)
        except OSError as error:
            raise StorageError(f"cannot read {source.path}: {error}") from error
        if not chunk:
            raise StorageError(f"{source.path} ends at byte {position}, expected {size} bytes")
        position += len(chunk)
        yield chunk
        pace.throttle(2 * len(chunk))


def _load(files: Files, path: Path) -> list[Entry]:
    raw = _read(files, path)
    if raw is None:
        return []
    body = _verified_body(raw)
    if body is not None and len(body) >= _HEAD.size:
        magic, count = _HEAD.unpack_from(body)
        if magic == _MAGIC and len(body) == _HEAD.size + count * _ENTRY.size:
            return [Entry(*fields) for fields in _ENTRY.iter_unpack(body[_HEAD.size :])]
    raise DamagedState(
        f"{path} is damaged",
        detail="the file lists the partition's archived segments",
        hint="restore the file from a backup",
    )


def _load_unfinished(files: Files, path: Path) -> int | None:
    """Load the base offset of an interrupted move. A damaged file counts as missing: the unused copy then
    remains in the archive until the topic is deleted.
    """
    body = _verified_body(_read(files, path) or b"")
    if body is None or len(body) != _MOVE.size or not body.startswith(_MOVE_MAGIC):
        return None
    return int(_MOVE.unpack(body)[1])


def _read(files: Files, path: Path) -> bytes | None:
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _verified_body(raw: bytes) -> bytes | None:
    """Return the bytes before the checksum at the end; ``None`` if the checksum does not match."""
    body = raw[: -_CRC.size]
    return body if len(raw) > _CRC.size and _CRC.unpack_from(raw, len(body))[0] == crc32c(body) else None
