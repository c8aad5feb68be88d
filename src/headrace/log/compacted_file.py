"""Writing the file that takes the place of several segments: what is left of their batches, in unbroken order.

Where nothing is left between two batches, the first is stretched over the gap. Where it must not be, and before the
first batch, a batch without records covers the gap. So each batch begins where the one before it ends, as in any other
segment, and nothing that looks for damage has to know that a file was compacted.
"""

from __future__ import annotations

from pathlib import Path

from headrace.checksum import crc32c
from headrace.files import Files
from headrace.log.cleaner import Cleaned
from headrace.log.index import SparseIndex
from headrace.log.swap import Swap
from headrace.records import cover_batch, read_header, stretch_batch

__all__ = ["CompactedFile"]

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
        self._held: Cleaned | None = None
        self._end = base_offset
        self._epoch = 0
        self.index = SparseIndex(base_offset, base_offset)

    @property
    def size(self) -> int:
        held = len(self._held.data) if self._held is not None else 0
        return self._written + len(self._buffer) + held

    @property
    def written(self) -> int:
        return self._written

    def add(self, cleaned: Cleaned) -> None:
        """Put a batch behind the last one; it begins at or behind where that one ended."""
        self._reach(cleaned.header.base_offset)
        self._let_go()
        self._held = cleaned
        self._epoch = cleaned.header.leader_epoch

    def _reach(self, offset: int) -> None:
        """Let what is there end at ``offset``."""
        held = self._held
        end = held.header.next_offset if held is not None else self._end
        if end == offset:
            return
        if held is not None and held.may_stretch:
            longer = bytearray(held.data)
            stretch_batch(longer, held.header, offset)
            self._held = Cleaned(longer, read_header(longer), may_stretch=True)
            return
        self._let_go()
        self._cover(offset, _NO_TIME)

    def _cover(self, offset: int, timestamp_ms: int) -> None:
        cover = cover_batch(self._end, offset, self._epoch, timestamp_ms)
        self._held = Cleaned(cover, read_header(cover), may_stretch=True)

    def _let_go(self) -> None:
        if self._held is None:
            return
        data, header, _ = self._held
        self._held = None
        position = self._written + len(self._buffer)
        self.index.add(
            header.base_offset, header.next_offset, position, len(data), header.max_timestamp, self._interval
        )
        self._end = header.next_offset
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        taken = self._file.pwrite([self._buffer], self._written)
        if taken != len(self._buffer):
            raise OSError(f"short write of {self._file.path}: {taken} of {len(self._buffer)} bytes")
        self._crc = crc32c(bytes(self._buffer), self._crc)
        self._written += taken
        self._buffer = bytearray()

    def finish(self, end_offset: int, newest_ms: int) -> Swap:
        """Let the file end at ``end_offset`` and make it durable, with its index. Nothing is decided yet.

        ``newest_ms`` is the greatest timestamp of what the file stands for: without any record, it still has an age.
        """
        if self._held is None and self._end == self._swap.base_offset:
            self._cover(end_offset, newest_ms)
        self._reach(end_offset)
        self._let_go()
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
