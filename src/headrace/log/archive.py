"""Old segments of a partition in another folder: moved there by retention instead of deleted, and read from there.

    DIR/archived                         which segments are there; big-endian:

    0   8  magic "HRARCH01"
    8   8  number of segments, n
    16     n times: base offset (8), end offset (8), bytes (8), greatest timestamp (8)
    …   4  CRC-32C of everything before

    ARCHIVE/<offset>.log, .index         their files, as they were

Invariant: a segment counts as archived once ``archived`` names it durably, and by then its files are durable in the
archive. Before that a crash leaves a copy that nobody knows of, and the next attempt writes it again; after it, a
file that is still here too, which the next start removes. The list is kept here, not there, so that a partition opens
and serves all else while the archive is away; only a read that needs a file from there fails, and says so.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.checksum import crc32c
from headrace.errors import ArchiveUnavailable, DamagedState
from headrace.files import File, Files
from headrace.log.index import SparseIndex
from headrace.log.pace import Pace
from headrace.log.segment import Segment, write_whole

__all__ = ["Archive", "ArchivedSegment", "Entry"]

ARCHIVED_NAME = "archived"
_MAGIC = b"HRARCH01"
_HEAD = struct.Struct(">8sQ")
_ENTRY = struct.Struct(">qqqq")
_CRC = struct.Struct(">I")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int


class ArchivedSegment(Segment):
    @property
    def file(self) -> File:
        try:
            return super().file
        except OSError as error:
            raise ArchiveUnavailable(self.path, self.base_offset, self.end_offset, str(error)) from error


class Archive:
    def __init__(self, files: Files, home: Path, directory: Path | None) -> None:
        """``home`` is the partition's own directory, ``directory`` the one in the archive, if the broker has one."""
        self._files = files
        self._home = home
        self._directory = directory
        self.segments: list[ArchivedSegment] = []
        self._bases: list[int] = []
        self.entries: list[Entry] = []
        self._take(_load(files, home / ARCHIVED_NAME))

    def _take(self, entries: list[Entry]) -> None:
        known = {segment.base_offset: segment for segment in self.segments}
        # Without an archive the paths lead nowhere, and whoever asks is told so.
        directory = self._directory or self._home / "no-archive-is-set"
        self.entries = entries
        self.segments = [
            known.get(entry.base_offset)
            or ArchivedSegment(
                self._files,
                directory,
                entry.base_offset,
                SparseIndex(
                    entry.base_offset, entry.end_offset, entry.size, entry.max_timestamp, loaded=False
                ),
            )
            for entry in entries
        ]
        self._bases = [entry.base_offset for entry in entries]

    @property
    def end_offset(self) -> int:
        """Where the partition's own files go on; -1 where nothing is archived."""
        return self.entries[-1].end_offset if self.entries else -1

    def find(self, offset: int) -> Segment | None:
        at = bisect_right(self._bases, offset) - 1
        return self.segments[at] if at >= 0 else None

    # In a thread

    def copy(self, segments: Sequence[Segment], pace: Pace) -> list[Entry]:
        """Put copies of the files into the archive, durably; they count when ``name`` has named them."""
        directory = self._ready_directory()
        added = []
        for segment in segments:
            target = directory / segment.path.name
            self._copy_file(segment.file, segment.size, target, pace)
            write_whole(self._files, target.with_suffix(segment.index_path.suffix), self._index_of(segment))
            added.append(
                Entry(segment.base_offset, segment.end_offset, segment.size, segment.index.max_timestamp)
            )
        self._files.sync_dir(directory)
        return added

    def name(self, entries: Sequence[Entry]) -> list[Entry]:
        """From now on these count as archived."""
        wanted = [*self.entries, *entries]
        self._write(wanted)
        return wanted

    def drop_below(self, offset: int) -> list[Entry]:
        """Remove the files of segments that lie wholly below the partition's start."""
        kept = [entry for entry in self.entries if entry.end_offset > offset]
        for segment in self.segments[: len(self.entries) - len(kept)]:
            segment.remove()
        if len(kept) < len(self.entries):
            self._write(kept)
        return kept

    def _index_of(self, segment: Segment) -> bytes:
        file = self._files.open(segment.index_path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def _copy_file(self, source: File, size: int, target: Path, pace: Pace) -> None:
        fresh = target.with_name(target.name + ".new")
        for leftover in (fresh, target):
            if self._files.exists(leftover):
                self._files.remove(leftover)
        file = self._files.open(fresh, create=True)
        try:
            position = 0
            while position < size:
                chunk = source.pread(min(_CHUNK_BYTES, size - position), position)
                taken = file.pwrite([chunk], position)
                if not chunk or taken != len(chunk):
                    raise OSError(f"short copy of {source.path} to {fresh} at byte {position}")
                position += taken
                pace.moved(2 * taken)
            file.sync()
        finally:
            file.close()
        self._files.rename(fresh, target)

    def _ready_directory(self) -> Path:
        directory = self._directory
        if directory is None:
            raise ArchiveUnavailable(self._home, 0, 0, "the broker was started without an archive")
        # archive / cluster / topic / partition: the archive itself must be there, or it may be a mount that is away.
        root = directory.parents[2]
        levels = (directory.parents[1], directory.parents[0], directory)
        if not self._files.exists(root) or (self.entries and not self._files.exists(directory)):
            raise ArchiveUnavailable(directory, 0, 0, "the folder is missing")
        for level in levels:
            self._files.make_dir(level)
            # Also where it is there already: a process that was killed may have left it to the page cache.
            self._files.sync_dir(level.parent)
        return directory

    def _write(self, entries: Sequence[Entry]) -> None:
        body = _HEAD.pack(_MAGIC, len(entries)) + b"".join(
            _ENTRY.pack(entry.base_offset, entry.end_offset, entry.size, entry.max_timestamp)
            for entry in entries
        )
        write_whole(self._files, self._home / ARCHIVED_NAME, body + _CRC.pack(crc32c(body)))
        self._files.sync_dir(self._home)

    # In the event loop

    def adopt(self, entries: list[Entry]) -> None:
        """Take what ``name`` or ``drop_below`` has written."""
        self._take(entries)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()


def _load(files: Files, path: Path) -> list[Entry]:
    if not files.exists(path):
        return []
    file = files.open(path)
    try:
        raw = file.pread(file.size(), 0)
    finally:
        file.close()
    body = raw[: -_CRC.size]
    if len(body) >= _HEAD.size and _CRC.unpack_from(raw, len(body))[0] == crc32c(body):
        magic, count = _HEAD.unpack_from(body)
        if magic == _MAGIC and len(body) == _HEAD.size + count * _ENTRY.size:
            return [Entry(*fields) for fields in _ENTRY.iter_unpack(body[_HEAD.size :])]
    raise DamagedState(
        f"{path} does not read back",
        detail="it says which of the partition's segments are in the archive",
        hint="restore the file from a backup",
    )
