"""The sparse index of one segment: where batches begin, and the greatest timestamp up to there.

One entry is kept per ``index_interval_bytes`` of log, so a look-up is a binary search and a short walk.
Layout of ``<base>.index``, written whole when a segment is sealed or the log is closed, little-endian:

    0   8  magic "HRINDEX1"
    8   8  base offset of the segment
    16  8  end offset (one past the segment's last)
    24  8  bytes of the log file that the index covers
    32  8  greatest timestamp in the segment (-1: none)
    40  8  base offset of the first batch that holds that timestamp
    48  8  number of entries, n
    56  4  CRC-32C of the columns
    60  4  CRC-32C of bytes 0 to 59
    64  8n offsets: base offset of the batch an entry points to, rising
        8n positions: its byte in the log file, rising
        8n timestamps: the greatest of all batches from the start through this one, never falling

The first 64 bytes are all that a start reads; the columns are read when a reader first needs them, and may be
dropped again. Invariant: the index says nothing that the log does not. A crash may leave it missing, torn or
short of the log; it then fails its check and is made again from the log.
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

__all__ = ["SparseIndex", "load_columns", "load_facts", "read_thinned"]

_MAGIC = b"HRINDEX1"
_HEAD = struct.Struct("<8s6qI")
_CRC = struct.Struct("<I")
_FACTS_SIZE = _HEAD.size + _CRC.size
_ENTRIES_AT_ONCE = 1 << 17


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
        """Note a batch that was appended at ``position``."""
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
        """The (offset, position) of the last entry at or below ``offset``; the segment's start where there is
        none.
        """
        at = bisect_right(self.offsets, offset) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else (self.base_offset, 0)

    def after(self, position: int) -> tuple[int, int] | None:
        """The first entry that lies behind ``position``: where to go on past damage."""
        at = bisect_right(self.positions, position)
        return (self.offsets[at], self.positions[at]) if at < len(self.positions) else None

    def floor_time(self, timestamp: int) -> tuple[int, int]:
        """An (offset, position) before which no batch reaches ``timestamp``."""
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
        """Give the columns' memory back; the facts stay."""
        self.offsets, self.positions, self.timestamps = _column(), _column(), _column()
        self.loaded = False

    def take_columns(self, body: bytes) -> None:
        count = len(body) // 24
        for number, column in enumerate((self.offsets, self.positions, self.timestamps)):
            column.frombytes(body[8 * count * number : 8 * count * (number + 1)])
            if sys.byteorder == "big":
                column.byteswap()
        self.loaded = True


def load_facts(files: Files, path: Path, base_offset: int) -> SparseIndex | None:
    """The index without its columns, or ``None`` when the file is missing or fails its check."""
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        raw = file.pread(_FACTS_SIZE, 0)
        size = file.size()
    finally:
        file.close()
    facts = _parse_facts(raw, base_offset)
    return None if facts is None or size != _FACTS_SIZE + 24 * facts[1] else facts[0]


def read_thinned(file: ReadableFile, base_offset: int, entries_max: int) -> SparseIndex | None:
    """The whole index, a mebibyte at a time, with every n-th entry where there are more than ``entries_max``; ``None``
    when the file fails its check. Entries that are left out only make the walk behind a look-up longer.
    """
    facts = _parse_facts(file.pread(_FACTS_SIZE, 0), base_offset)
    if facts is None:
        return None
    index, count, stated_crc = facts
    step = max(1, -(-count // entries_max))
    position, crc = _FACTS_SIZE, 0
    for column in (index.offsets, index.positions, index.timestamps):
        for first in range(0, count, _ENTRIES_AT_ONCE):
            wanted = 8 * min(_ENTRIES_AT_ONCE, count - first)
            raw = file.pread(wanted, position)
            if len(raw) != wanted:
                return None
            crc = crc32c(raw, crc)
            position += wanted
            entries = _column()
            entries.frombytes(raw)
            if sys.byteorder == "big":
                entries.byteswap()
            column.extend(entries[-first % step :: step])
    if crc != stated_crc:
        return None
    index.loaded = True
    return index


def _parse_facts(raw: bytes, base_offset: int) -> tuple[SparseIndex, int, int] | None:
    """The index without its columns, how many entries these have, and their CRC."""
    if len(raw) < _FACTS_SIZE or _CRC.unpack_from(raw, _HEAD.size)[0] != crc32c(raw[: _HEAD.size]):
        return None
    magic, base, end, covered, max_timestamp, max_timestamp_offset, count, crc = _HEAD.unpack_from(raw)
    if magic != _MAGIC or base != base_offset or count < 0:
        return None
    index = SparseIndex(base, end, covered, max_timestamp, max_timestamp_offset, loaded=False)
    index.next_entry_at = covered
    return index, count, crc


def load_columns(files: Files, path: Path, index: SparseIndex) -> bool:
    """Fill in the columns; ``False`` when the file is missing or fails its check."""
    if not files.exists(path):
        return False
    file = files.open(path)
    try:
        raw = file.pread(file.size(), 0)
    finally:
        file.close()
    if len(raw) < _FACTS_SIZE:
        return False
    body = raw[_FACTS_SIZE:]
    *_, count, body_crc = _HEAD.unpack_from(raw)
    if len(body) != 24 * count or crc32c(body) != body_crc:
        return False
    index.take_columns(body)
    return True
