"""Walking the batches of a log file, and finding the next whole one behind damage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from headrace.checksum import crc32c
from headrace.records import HEADER_SIZE, BatchHeader, RecordError, crc_ok, read_header

__all__ = ["ReadableFile", "find_whole_batch", "is_followed", "scan_headers", "scan_whole_batches"]

_WINDOW = 256 * 1024
_MAGIC_TWO = re.compile(b"\x02", re.DOTALL)
_MAGIC_AT = 16
_CRC_FROM = 21


class ReadableFile(Protocol):
    """What reading needs of a file, wherever it is: on disk or in the archive."""

    @property
    def path(self) -> Path | str: ...
    def pread(self, size: int, position: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""

    def pread_ready(self, size: int, position: int) -> bytes | bytearray | None:
        """As ``pread``, but ``None`` when it would have to wait."""

    def close(self) -> None: ...


def scan_headers(file: ReadableFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Headers of the batches in ``[position, end)``, as far as they chain; CRCs are not checked.

    Ends where a header does not read, or a batch would pass ``end``: the caller compares the last position
    with ``end``.
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
    """Batches from ``position`` on which are whole: header, CRC, and an offset that follows the one before."""
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
    """Whether what lies at ``position`` begins at ``next_offset``, or the file ends there, at ``end_offset``.

    A batch's own offset is not under its CRC. Behind damage, where no batch before it vouches for it, the one behind it
    does.
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
    """The first batch at or behind ``position`` that passes its CRC and lies in the offset range.

    Used behind damage, where no length can be trusted: every byte that could be a magic of 2 is tried as one.
    """
    while position + HEADER_SIZE <= end:
        window = file.pread(min(_WINDOW, end - position), position)
        if len(window) < HEADER_SIZE:
            return None
        for hit in _MAGIC_TWO.finditer(window, _MAGIC_AT):
            at = hit.start() - _MAGIC_AT
            if at + HEADER_SIZE > len(window):
                break
            try:
                header = read_header(window, at)
            except RecordError:
                continue
            if not offset_min <= header.base_offset <= offset_max or position + at + header.size > end:
                continue
            if _has_its_crc(file, position + at, header):
                return position + at, header
        if position + len(window) >= end:
            return None
        position += len(window) - HEADER_SIZE + 1
    return None


def _has_its_crc(file: ReadableFile, position: int, header: BatchHeader) -> bool:
    """A window at a time: what only looks like a header may state any length up to the end of the file."""
    crc, at, end = 0, position + _CRC_FROM, position + header.size
    while at < end:
        piece = file.pread(min(_WINDOW, end - at), at)
        if not piece:
            return False
        crc = crc32c(piece, crc)
        at += len(piece)
    return bool(crc == header.crc)
