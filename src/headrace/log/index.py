"""The sparse index of one segment: the positions of batches, and the greatest timestamp up to each batch.

It has one entry per ``index_interval_bytes`` of log, so a lookup is a binary search and a short scan.
Layout of ``<base>.index``, written as a whole when a segment is sealed or the log is closed, little-endian:

    0   8  magic "HRINDEX1"
    8   8  base offset of the segment
    16  8  end offset (one past the segment's last offset)
    24  8  bytes of the log file that the index covers
    32  8  greatest timestamp in the segment (-1: none)
    40  8  base offset of the first batch with that timestamp
    48  8  number of entries, n
    56  4  CRC-32C of the columns
    60  4  CRC-32C of bytes 0 to 59
    64  8n offsets: base offset of the batch that an entry points to, increasing
        8n positions: byte position of that batch in the log file, increasing
        8n timestamps: greatest timestamp from the start of the segment through that batch, never decreasing

A broker start reads only the first 64 bytes. The three columns are loaded when a reader first needs them, and can be
unloaded again. Invariant: the index can be rebuilt from the log alone. A crash may leave the index missing, torn or
shorter than the log. Its check then fails, and it is rebuilt.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from headrace.checksum import crc32c
from headrace.files import Files
from headrace.log.scan import ReadableFile

__all__ = ["SparseIndex", "load_columns", "load_header", "read_thinned"]

_MAGIC = b"HRINDEX1"
_HEAD = struct.Struct("<8s6qI")
_CRC = struct.Struct("<I")
_HEADER_SIZE = _HEAD.size + _CRC.size
_ENTRIES_PER_READ = 1 << 17


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class SparseIndex:
    base_offset: int
    end_offset: int
    size: int = 0
    max_timestamp: int = -1
    max_timestamp_offset: int = -1
    offsets: array[int] = field(default_factory=_column)
    positions: array[int] = field(default_factory=_column)
    timestamps: array[int] = field(default_factory=_column)
    next_entry_at: int = 0
    loaded: bool = True

    def add(
        self, base_offset: int, end_offset: int, position: int, size: int, max_timestamp: int, interval: int
    ) -> None:
        """Record a batch that was appended at ``position``."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = base_offset
        if position >= self.next_entry_at:
            self.offsets.append(base_offset)
            self.positions.append(position)
            self.timestamps.append(self.max_timestamp)
            self.next_entry_at = position + size + interval
        self.end_offset = end_offset
        self.size = position + size

    def floor(self, offset: int) -> tuple[int, int]:
        """Return (offset, position) of the last entry at or below ``offset``, or of the segment's start."""
        at = bisect_right(self.offsets, offset) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else (self.base_offset, 0)

    def first_after(self, position: int) -> tuple[int, int] | None:
        """Return the first entry after ``position``, where a reader can continue after damage."""
        at = bisect_right(self.positions, position)
        return (self.offsets[at], self.positions[at]) if at < len(self.positions) else None

    def floor_time(self, timestamp: int) -> tuple[int, int]:
        """Return an (offset, position) such that all batches before it are older than ``timestamp``."""
        at = bisect_left(self.timestamps, timestamp) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else (self.base_offset, 0)

    def dump(self) -> bytes:
        columns = [array("q", column) for column in (self.offsets, self.positions, self.timestamps)]
        if sys.byteorder == "big":
            for column in columns:
                column.byteswap()
        body = b"".join(column.tobytes() for column in columns)
        head = _HEAD.pack(
            _MAGIC,
            self.base_offset,
            self.end_offset,
            self.size,
            self.max_timestamp,
            self.max_timestamp_offset,
            len(self.offsets),
            crc32c(body),
        )
        return head + _CRC.pack(crc32c(head)) + body

    def unload(self) -> None:
        """Free the memory of the columns; the other fields remain."""
        self.offsets, self.positions, self.timestamps = _column(), _column(), _column()
        self.loaded = False

    def set_columns(self, body: bytes) -> None:
        count = len(body) // 24
        for number, column in enumerate((self.offsets, self.positions, self.timestamps)):
            column.frombytes(body[8 * count * number : 8 * count * (number + 1)])
            if sys.byteorder == "big":
                column.byteswap()
        self.loaded = True


def load_header(files: Files, path: Path, base_offset: int) -> SparseIndex | None:
    """Load the index without its columns; ``None`` if the file is missing or damaged."""
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        raw = file.pread(_HEADER_SIZE, 0)
        size = file.size()
    finally:
        file.close()
    header = _parse_header(raw, base_offset)
    return None if header is None or size != _HEADER_SIZE + 24 * header[1] else header[0]


def read_thinned(file: ReadableFile, base_offset: int, entries_max: int) -> SparseIndex | None:
    """Load the whole index, one mebibyte at a time; ``None`` if the file is damaged.

    If the file has more than ``entries_max`` entries, only every n-th entry is loaded, and a lookup scans farther.
    """
    header = _parse_header(file.pread(_HEADER_SIZE, 0), base_offset)
    if header is None:
        return None
    index, count, expected_crc = header
    step = max(1, -(-count // entries_max))
    position, crc = _HEADER_SIZE, 0
    for column in (index.offsets, index.positions, index.timestamps):
        for first in range(0, count, _ENTRIES_PER_READ):
            read_size = 8 * min(_ENTRIES_PER_READ, count - first)
            raw = file.pread(read_size, position)
            if len(raw) != read_size:
                return None
            crc = crc32c(raw, crc)
            position += read_size
            entries = _column()
            entries.frombytes(raw)
            if sys.byteorder == "big":
                entries.byteswap()
            column.extend(entries[-first % step :: step])
    if crc != expected_crc:
        return None
    index.loaded = True
    return index


def _parse_header(raw: bytes, base_offset: int) -> tuple[SparseIndex, int, int] | None:
    """Parse the index without its columns; returns it with the number of entries and their CRC."""
    if len(raw) < _HEADER_SIZE or _CRC.unpack_from(raw, _HEAD.size)[0] != crc32c(raw[: _HEAD.size]):
        return None
    magic, base, end, log_bytes, max_timestamp, max_timestamp_offset, count, crc = _HEAD.unpack_from(raw)
    if magic != _MAGIC or base != base_offset or count < 0:
        return None
    index = SparseIndex(base, end, log_bytes, max_timestamp, max_timestamp_offset, loaded=False)
    index.next_entry_at = log_bytes
    return index, count, crc


def load_columns(files: Files, path: Path, index: SparseIndex) -> bool:
    """Load the columns into ``index``; ``False`` if the file is missing or damaged."""
    if not files.exists(path):
        return False
    file = files.open(path)
    try:
        raw = file.pread(file.size(), 0)
    finally:
        file.close()
    if len(raw) < _HEADER_SIZE:
        return False
    body = raw[_HEADER_SIZE:]
    *_, count, body_crc = _HEAD.unpack_from(raw)
    if len(body) != 24 * count or crc32c(body) != body_crc:
        return False
    index.set_columns(body)
    return True
