"""Old segments of a partition in its archive: moved there by retention instead of deleted, and read from there.

    DIR/archived      which segments are there; big-endian:

    0   8  magic "HRARCH01"
    8   8  number of segments, n
    16     n times: base offset (8), end offset (8), bytes (8), greatest timestamp (8)
    …   4  CRC-32C of everything before

    DIR/archiving     which segment is being moved, while one is:

    0   8  magic "HRMOVE01"
    8   8  its base offset
    16  4  CRC-32C of everything before

    TOPIC/PARTITION/<offset>.log, .index     their files in the archive, as they were

Invariant: a segment counts as archived once ``archived`` names it durably, and by then its files are whole and durable
in the archive. Before that a crash leaves a copy that does not count, which ``archiving`` names, so that it is found
and removed; after it, a file that is still here too, which the next start removes. Both lists are kept here, not there,
so that a partition opens and serves all else while the archive is away; only a read that needs a file from there fails,
and says so.

Whoever stops waiting for a thread that moves or deletes calls ``interrupt``: behind it that thread decides nothing any
more, however long the archive kept it waiting, and makes no further call to the store. The partition may have been
opened again by then, and its copies there count.
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
from headrace.log.archive_store import INDEX_BYTES_MAX, ArchivePlace, MissingStore
from headrace.log.archived_segment import ArchivedSegment, Entry, index_file, log_file
from headrace.log.byte_cache import ByteCache
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
    def __init__(self, files: Files, home: Path, place: ArchivePlace | None) -> None:
        """``home`` is the partition's own directory; without a ``place`` the broker has no archive."""
        self._files = files
        self._home = home
        self._place = place or ArchivePlace(MissingStore(), home.name, ByteCache(INDEX_BYTES_MAX))
        self._deciding = threading.Lock()
        self.segments: list[ArchivedSegment] = []
        self._bases: list[int] = []
        self.entries: list[Entry] = []
        self._take(_load(files, home / ARCHIVED_NAME))
        self.unfinished = _load_unfinished(files, home / ARCHIVING_NAME)
        """The base offset of a segment whose move was cut short: what the archive has of it does not count."""
        if self.unfinished is not None and self.unfinished < self.end_offset:
            # It was named before the crash.
            self.unfinished = None

    def _take(self, entries: list[Entry]) -> None:
        known = {segment.base_offset: segment for segment in self.segments}
        self.entries = entries
        self.segments = [
            known.get(entry.base_offset) or ArchivedSegment(self._place, entry) for entry in entries
        ]
        self._bases = [entry.base_offset for entry in entries]

    @property
    def end_offset(self) -> int:
        """Where the partition's own files go on; -1 where nothing is archived."""
        return self.entries[-1].end_offset if self.entries else -1

    def find(self, offset: int) -> ArchivedSegment | None:
        at = bisect_right(self._bases, offset) - 1
        return self.segments[at] if at >= 0 else None

    # In a thread

    def check(self, stop: threading.Event) -> None:
        """Raise if the archive is away, or is another one: what it has of this partition must be there."""
        _expect_running(stop)
        try:
            names = self._place.store.list(self._place.name)
        except OSError as error:
            raise self._unavailable(str(error)) from error
        if self.entries and not names:
            raise self._unavailable(f"none of {len(self.entries)} archived segments is there")

    def copy(self, segment: Segment, pace: Pace, stop: threading.Event) -> Entry:
        """Put copies of the files into the archive; they count when ``name`` has named them."""
        _expect_running(stop)
        _expect_whole(segment)
        self.remove_unfinished(stop)
        place, base = self._place, segment.base_offset
        body = _MOVE.pack(_MOVE_MAGIC, base)
        with self.deciding(stop):
            self.unfinished = base
            write_whole(self._files, self._home / ARCHIVING_NAME, body + _CRC.pack(crc32c(body)))
            self._files.sync_dir(self._home)
        try:
            place.store.put(
                log_file(place, base), _chunks(segment.file, segment.size, pace, stop), segment.size
            )
            if self._files.exists(segment.index_path):
                self._put_index(segment, pace, stop)
            else:
                # A reader makes it again from the log; one that a move before this left is of no use.
                _expect_running(stop)
                place.store.delete(index_file(place, base))
        except OSError as error:
            raise self._unavailable(str(error)) from error
        return Entry(base, segment.end_offset, segment.size, segment.index.max_timestamp)

    def _put_index(self, segment: Segment, pace: Pace, stop: threading.Event) -> None:
        file = self._files.open(segment.index_path)
        try:
            size = file.size()
            name = index_file(self._place, segment.base_offset)
            self._place.store.put(name, _chunks(file, size, pace, stop), size)
        finally:
            file.close()

    def name(self, entry: Entry) -> list[Entry]:
        """From now on this one counts as archived; call it within ``deciding``."""
        wanted = [*self.entries, entry]
        write_archived(self._files, self._home, wanted)
        with suppress(OSError):
            # One that stays names a segment that counts, and says nothing.
            self._files.remove(self._home / ARCHIVING_NAME)
        return wanted

    def remove_unfinished(self, stop: threading.Event) -> None:
        """Remove what a move that was cut short has left."""
        base = self.unfinished
        if base is None:
            return
        with self.deciding(stop):
            # An error of the disk may have come when the list named it already. It must not, before its files go.
            write_archived(self._files, self._home, self.entries)
        self._delete(base, stop)
        with self.deciding(stop):
            if self._files.exists(self._home / ARCHIVING_NAME):
                self._files.remove(self._home / ARCHIVING_NAME)
            self.unfinished = None

    def drop_below(self, offset: int, stop: threading.Event) -> list[Entry]:
        """Remove the files of segments that lie wholly below the partition's start."""
        kept = [entry for entry in self.entries if entry.end_offset > offset]
        if len(kept) == len(self.entries):
            return kept
        for entry in self.entries[: len(self.entries) - len(kept)]:
            self._delete(entry.base_offset, stop)
        with self.deciding(stop):
            write_archived(self._files, self._home, kept)
        return kept

    def _delete(self, base_offset: int, stop: threading.Event) -> None:
        try:
            for name in (index_file(self._place, base_offset), log_file(self._place, base_offset)):
                _expect_running(stop)
                self._place.store.delete(name)
        except OSError as error:
            raise self._unavailable(str(error)) from error

    @contextmanager
    def deciding(self, stop: threading.Event) -> Iterator[None]:
        """Around what changes the partition's own files; ``Interrupted`` where ``stop`` came before."""
        with self._deciding:
            if stop.is_set():
                raise Interrupted
            yield

    def _unavailable(self, reason: str) -> ArchiveUnavailable:
        store = self._place.store
        return ArchiveUnavailable(store.location(self._place.name), 0, 0, reason, store.advice)

    # In the event loop

    def interrupt(self, stop: threading.Event) -> None:
        """Behind this, a thread that was given ``stop`` decides nothing any more."""
        stop.set()
        with self._deciding:
            return

    def adopt(self, entries: list[Entry]) -> None:
        """Take what ``name`` or ``drop_below`` has written."""
        self._take(entries)
        if self.unfinished is not None and self.unfinished < self.end_offset:
            self.unfinished = None


def write_archived(files: Files, home: Path, entries: Sequence[Entry]) -> None:
    body = _HEAD.pack(_MAGIC, len(entries)) + b"".join(_ENTRY.pack(*entry) for entry in entries)
    write_whole(files, home / ARCHIVED_NAME, body + _CRC.pack(crc32c(body)))
    files.sync_dir(home)


def _expect_running(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted


def _expect_whole(segment: Segment) -> None:
    """Before the first byte is sent: a segment may be large."""
    try:
        size = segment.file.size()
    except OSError as error:
        raise StorageError(f"{segment.path} cannot be read: {error}") from error
    if size < segment.size:
        raise StorageError(f"{segment.path} ends at byte {size} of {segment.size}")


def _chunks(source: File, size: int, pace: Pace, stop: threading.Event) -> Iterator[bytes]:
    position = 0
    while position < size:
        _expect_running(stop)
        try:
            chunk = source.pread(min(_CHUNK_BYTES, size - position), position)
        except OSError as error:
            raise StorageError(f"{source.path} cannot be read: {error}") from error
        if not chunk:
            raise StorageError(f"{source.path} ends at byte {position} of {size}")
        position += len(chunk)
        yield chunk
        pace.moved(2 * len(chunk))


def _load(files: Files, path: Path) -> list[Entry]:
    raw = _read(files, path)
    if raw is None:
        return []
    body = _checked(raw)
    if body is not None and len(body) >= _HEAD.size:
        magic, count = _HEAD.unpack_from(body)
        if magic == _MAGIC and len(body) == _HEAD.size + count * _ENTRY.size:
            return [Entry(*fields) for fields in _ENTRY.iter_unpack(body[_HEAD.size :])]
    raise DamagedState(
        f"{path} does not read back",
        detail="it says which of the partition's segments are in the archive",
        hint="restore the file from a backup",
    )


def _load_unfinished(files: Files, path: Path) -> int | None:
    """One that is damaged tells nothing: what it named is removed with the topic."""
    body = _checked(_read(files, path) or b"")
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


def _checked(raw: bytes) -> bytes | None:
    """What a checksum at the end is right for."""
    body = raw[: -_CRC.size]
    return body if len(raw) > _CRC.size and _CRC.unpack_from(raw, len(body))[0] == crc32c(body) else None
