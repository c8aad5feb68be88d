"""Scans the batches of a log file, and finds the next intact batch after damage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from headrace.checksum import crc32c
from headrace.records import HEADER_SIZE, BatchHeader, RecordError, crc_ok, read_header
from headrace.records.batch import CRC_START, MAGIC, MAGIC_AT

__all__ = [
    "ReadableFile",
    "crc_matches",
    "find_whole_batch",
    "is_followed",
    "scan_headers",
    "scan_whole_batches",
]

_WINDOW = 256 * 1024
_MAGIC_BYTE = re.compile(re.escape(bytes([MAGIC])), re.DOTALL)


class ReadableFile(Protocol):
    """A readable file, on disk or in the archive."""

    @property
    def path(self) -> Path | str: ...
    def pread(self, size: int, position: int) -> bytes:
        """Read ``size`` bytes, or fewer at the end of the file."""

    def pread_nowait(self, size: int, position: int) -> bytes | bytearray | None:
        """Like ``pread``, but return ``None`` if the read would have to wait."""

    def close(self) -> None: ...


def scan_headers(file: ReadableFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the headers of consecutive batches in ``[position, end)``, without checking CRCs.

    Stops at an invalid header, or at a batch that would exceed ``end``. To detect that, the caller compares the end of
    the last batch with ``end``.
    """
    window = b""
    window_at = position
    while position + HEADER_SIZE <= end:
        if position < window_at or position + HEADER_SIZE > window_at + len(window):
            window_at = position
            window = file.pread(min(_WINDOW, end - position), position)
            if len(window) < HEADER_SIZE:
                return
        try:
            header = read_header(window, position - window_at)
        except RecordError:
            return
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def scan_whole_batches(
    file: ReadableFile, position: int, end: int, offset: int
) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Yield complete batches from ``position`` on: valid header, valid CRC, and consecutive offsets from ``offset``."""
    while position + HEADER_SIZE <= end:
        try:
            header = read_header(file.pread(HEADER_SIZE, position))
        except RecordError:
            return
        if header.base_offset != offset or position + header.size > end or header.last_offset_delta < 0:
            return
        batch = file.pread(header.size, position)
        if len(batch) != header.size or not crc_ok(batch, 0, header.size):
            return
        yield position, header, batch
        position += header.size
        offset = header.next_offset


def is_followed(file: ReadableFile, position: int, end: int, next_offset: int, end_offset: int) -> bool:
    """Whether a batch with base offset ``next_offset`` is at ``position``. At the end of the file: whether
    ``next_offset`` is ``end_offset``.

    The CRC does not cover a batch's own offset. Normally the previous batch confirms the offset. After damage, the next
    batch must confirm it.
    """
    if position >= end:
        return next_offset == end_offset
    try:
        return read_header(file.pread(HEADER_SIZE, position)).base_offset == next_offset
    except RecordError:
        return False


def find_whole_batch(
    file: ReadableFile, position: int, end: int, offset_min: int, offset_max: int
) -> tuple[int, BatchHeader] | None:
    """Find the first batch at or after ``position`` with a valid CRC and an offset in the range.

    Used after damage, where lengths cannot be trusted. It tries every byte that could be the magic number of a batch.
    """
    while position + HEADER_SIZE <= end:
        window = file.pread(min(_WINDOW, end - position), position)
        if len(window) < HEADER_SIZE:
            return None
        for match in _MAGIC_BYTE.finditer(window, MAGIC_AT):
            at = match.start() - MAGIC_AT
            if at + HEADER_SIZE > len(window):
                break
            try:
                header = read_header(window, at)
            except RecordError:
                continue
            if not offset_min <= header.base_offset <= offset_max or position + at + header.size > end:
                continue
            if crc_matches(file, position + at, header):
                return position + at, header
        if position + len(window) >= end:
            return None
        position += len(window) - HEADER_SIZE + 1
    return None


def crc_matches(file: ReadableFile, position: int, header: BatchHeader) -> bool:
    """Whether the CRC of the batch matches. Reads in small pieces, because a false header may contain any length."""
    crc, at, end = 0, position + CRC_START, position + header.size
    while at < end:
        chunk = file.pread(min(_WINDOW, end - at), at)
        if not chunk:
            return False
        crc = crc32c(chunk, crc)
        at += len(chunk)
    return bool(crc == header.crc)
