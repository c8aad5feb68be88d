"""Walking the batches of a segment as its bytes come by, in chunks of any size."""

from __future__ import annotations

from headrace.records import HEADER_SIZE, RecordError, read_header

__all__ = ["BatchWalk"]


class BatchWalk:
    """``position`` and ``end_offset`` are those behind the last batch that is whole and ends at or before ``limit``."""

    def __init__(self, base_offset: int, limit: int | None = None) -> None:
        self.position = 0
        self.end_offset = base_offset
        self.is_over = False
        """What comes next is not wanted, or is no batch."""
        self._limit = limit
        self._head = bytearray()
        self._left = 0
        self._size = 0
        self._next_offset = base_offset

    def feed(self, chunk: bytes) -> None:
        at = 0
        while at < len(chunk) and not self.is_over:
            if self._left:
                taken = min(self._left, len(chunk) - at)
                at += taken
                self._left -= taken
                if not self._left:
                    self.position += self._size
                    self.end_offset = self._next_offset
                continue
            taken = min(HEADER_SIZE - len(self._head), len(chunk) - at)
            self._head += chunk[at : at + taken]
            at += taken
            if len(self._head) == HEADER_SIZE:
                self._begin()

    def _begin(self) -> None:
        try:
            header = read_header(bytes(self._head))
        except RecordError:
            self.is_over = True
            return
        if header.base_offset != self.end_offset or (
            self._limit is not None and header.next_offset > self._limit
        ):
            self.is_over = True
            return
        self._head.clear()
        self._size, self._next_offset = header.size, header.next_offset
        self._left = header.size - HEADER_SIZE
        if not self._left:
            self.position += self._size
            self.end_offset = self._next_offset
