"""The progress of compaction in a partition, and the file that replaces compacted segments.

Layout of the file ``compacted``, replaced as a whole, big-endian:

    0   8  magic "HRCOMP01"
    8   8  clean offset: below it, each key has only one record
    16  8  tombstones removed below: one past the offset of the last expired tombstone that was removed
    24  8  next horizon: when the next tombstone expires, in ms of trusted time; -1 if none does
    32  4  CRC-32C of bytes 0 to 31

Assume that a reader has read everything below an offset P, stopped, and resumes at P. It has missed a deletion if an
expired tombstone at or after P was removed meanwhile. P is then below *tombstones removed below*, and the reader must
read the topic again from the start. A tombstone that was removed because its key has a newer record does not count: the
reader gets that record.

Invariant: *tombstones removed below* is durable before a tombstone is removed. So after a crash it may be too high,
but never too low. If the file does not exist, the partition was never compacted. A wrong checksum means damage, not a
crash. Then every reader must start again, and everything is compacted again.

``CompactedFile`` writes the file that replaces several segments. It contains the remaining batches, without offset
gaps. The batch before a gap is extended over the gap. If that batch cannot be extended, or the gap is at the start of
the file, a batch without records fills the gap. So each batch begins where the previous batch ends, as in any other
segment, and integrity checks work the same for compacted segments.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.checksum import crc32c
from headrace.files import Files
from headrace.log.cleaner import CleanedBatch
from headrace.log.index import SparseIndex
from headrace.log.segment import write_whole
from headrace.log.swap import Swap
from headrace.records import empty_batch_for_offsets, extend_last_offset, read_header

__all__ = ["COMPACTED_NAME", "Compacted", "CompactedFile", "load_compacted"]

COMPACTED_NAME = "compacted"
_MAGIC = b"HRCOMP01"
_BODY = struct.Struct(">8sqqq")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Compacted:
    clean_offset: int = 0
    tombstones_removed_below: int = 0
    next_horizon_ms: int = -1

    def write(self, files: Files, directory: Path) -> None:
        """Write the file; it is durable on return."""
        body = _BODY.pack(_MAGIC, self.clean_offset, self.tombstones_removed_below, self.next_horizon_ms)
        write_whole(files, directory / COMPACTED_NAME, body + _CRC.pack(crc32c(body)))
        files.sync_dir(directory)


def load_compacted(files: Files, directory: Path, end_offset: int) -> tuple[Compacted, str | None]:
    """Load the file; returns its content, and an error message if the file is damaged."""
    path = directory / COMPACTED_NAME
    if not files.exists(path):
        return Compacted(), None
    file = files.open(path)
    try:
        raw = file.pread(_BODY.size + _CRC.size + 1, 0)
    finally:
        file.close()
    if len(raw) == _BODY.size + _CRC.size:
        magic, clean, removed, horizon = _BODY.unpack_from(raw)
        if magic == _MAGIC and _CRC.unpack_from(raw, _BODY.size)[0] == crc32c(raw[: _BODY.size]):
            return Compacted(clean, removed, horizon), None
    return (
        Compacted(0, end_offset, -1),
        f"{path} is damaged; readers that resume must read again from the start of the log",
    )


_BUFFER_BYTES = 1 << 20
_NO_TIME = -1


class CompactedFile:
    def __init__(self, files: Files, directory: Path, base_offset: int, interval: int) -> None:
        self._files = files
        self._swap = Swap(directory, base_offset, base_offset, 0, 0)
        self._swap.discard(files)
        self._file = files.open(self._swap.new_log_path, create=True)
        self._interval = interval
        self._buffer = bytearray()
        self._written = 0
        self._crc = 0
        self._held: CleanedBatch | None = None
        self._end_offset = base_offset
        self._epoch = 0
        self.index = SparseIndex(base_offset, base_offset)

    @property
    def size(self) -> int:
        held = len(self._held.data) if self._held is not None else 0
        return self._written + len(self._buffer) + held

    @property
    def written(self) -> int:
        return self._written

    def add(self, cleaned: CleanedBatch) -> None:
        """Append a batch. It must begin at or after the end of the previous batch."""
        self._fill_gap(cleaned.header.base_offset)
        self._write_held()
        self._held = cleaned
        self._epoch = cleaned.header.leader_epoch

    def _fill_gap(self, offset: int) -> None:
        """Fill the gap up to ``offset``, if any."""
        held = self._held
        end = held.header.next_offset if held is not None else self._end_offset
        if end == offset:
            return
        if held is not None and held.may_stretch:
            stretched = bytearray(held.data)
            extend_last_offset(stretched, held.header, offset)
            self._held = CleanedBatch(stretched, read_header(stretched), may_stretch=True)
            return
        self._write_held()
        self._hold_empty_batch(offset, _NO_TIME)

    def _hold_empty_batch(self, offset: int, timestamp_ms: int) -> None:
        cover = empty_batch_for_offsets(self._end_offset, offset, self._epoch, timestamp_ms)
        self._held = CleanedBatch(cover, read_header(cover), may_stretch=True)

    def _write_held(self) -> None:
        if self._held is None:
            return
        data, header, _ = self._held
        self._held = None
        position = self._written + len(self._buffer)
        self.index.add(
            header.base_offset, header.next_offset, position, len(data), header.max_timestamp, self._interval
        )
        self._end_offset = header.next_offset
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        written = self._file.pwrite([self._buffer], self._written)
        if written != len(self._buffer):
            raise OSError(f"short write of {self._file.path}: {written} of {len(self._buffer)} bytes")
        self._crc = crc32c(bytes(self._buffer), self._crc)
        self._written += written
        self._buffer = bytearray()

    def finish(self, end_offset: int, newest_ms: int) -> Swap:
        """Fill the file up to ``end_offset``, with its index, and sync both. The swap has no effect before ``commit``.

        ``newest_ms`` is the greatest timestamp of the replaced segments. A file without records gets it as its
        timestamp, so that retention knows its age.
        """
        if self._held is None and self._end_offset == self._swap.base_offset:
            self._hold_empty_batch(end_offset, newest_ms)
        self._fill_gap(end_offset)
        self._write_held()
        self._flush()
        swap = Swap(self._swap.directory, self._swap.base_offset, end_offset, self._written, self._crc)
        self._file.sync()
        self._file.close()
        index = self._files.open(swap.new_index_path, create=True)
        try:
            data = self.index.dump()
            if index.pwrite([data], 0) != len(data):
                raise OSError(f"short write of {swap.new_index_path}")
            index.sync()
        finally:
            index.close()
        return swap

    def discard(self) -> None:
        self._file.close()
        self._swap.discard(self._files)
