"""Cutting a stream of bytes into frames, with no more memory than bytes that came.

Small frames are copied out of one buffer per connection. A frame that does not fit gets a buffer of its own,
which the socket fills directly, and which grows with what arrives: a size is only a claim until the bytes are
there. Only Produce has reason to be large: what a request may claim goes by its first two bytes, the API.
"""

from __future__ import annotations

import struct

from headrace.errors import HeadraceError

__all__ = ["FrameTooLarge", "Framing"]

_SIZE = struct.Struct(">i")
_SMALL = 8 * 1024
_FIRST_LARGE = 64 * 1024
_PRODUCE = b"\0\0"


class FrameTooLarge(HeadraceError):
    code = "HR-WIRE-FRAME-SIZE"

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(
            f"a frame of {size} bytes was announced, and 0 to {size_max} are allowed",
            hint="is the client speaking another protocol, such as TLS or HTTP, to this port?",
        )
        self.size = size


class Framing:
    def __init__(self, produce_bytes_max: int, other_bytes_max: int | None = None) -> None:
        self._max = produce_bytes_max
        self._other_max = produce_bytes_max if other_bytes_max is None else other_bytes_max
        self._small = bytearray(_SMALL)
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_size = 0
        self._filled = 0

    @property
    def is_inside_frame(self) -> bool:
        return self._large is not None or self._end > self._start

    @property
    def large_bytes(self) -> int:
        """What the frame being received takes beside the buffer that every connection has."""
        return 0 if self._large is None else len(self._large)

    @property
    def bytes_received(self) -> int:
        """How much of the frame being received is there."""
        return self._end - self._start if self._large is None else self._filled

    def room(self) -> memoryview:
        """Where the next bytes of the socket go."""
        if self._large is None:
            return memoryview(self._small)[self._end :]
        return memoryview(self._large)[self._filled :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """``count`` bytes were put into ``room``: the frames that are now whole."""
        if self._large is not None:
            self._filled += count
            return self._take_large()
        self._end += count
        frames: list[bytes | bytearray] = []
        while self._end - self._start >= 4:
            (size,) = _SIZE.unpack_from(self._small, self._start)
            if not 0 <= size <= self._max:
                raise FrameTooLarge(size, self._max)
            first = self._start + 4
            if size > self._other_max:
                if self._end - first < 2:
                    break
                if self._small[first : first + 2] != _PRODUCE:
                    raise FrameTooLarge(size, self._other_max)
            if self._end - first >= size:
                frames.append(bytes(self._small[first : first + size]))
                self._start = first + size
                continue
            if size + 4 > _SMALL:
                self._begin_large(size, first)
            break
        self._tidy()
        return frames

    def _begin_large(self, size: int, first: int) -> None:
        self._large = bytearray(min(size, _FIRST_LARGE))
        self._large_size = size
        self._filled = self._end - first
        self._large[: self._filled] = self._small[first : self._end]
        self._start = self._end = 0

    def _take_large(self) -> list[bytes | bytearray]:
        assert self._large is not None
        if self._filled == self._large_size:
            frame, self._large = self._large, None
            return [frame]
        if self._filled == len(self._large):
            # A new buffer, because the event loop still holds a view of the old one.
            grown = bytearray(min(2 * self._filled, self._large_size))
            grown[: self._filled] = self._large
            self._large = grown
        return []

    def _tidy(self) -> None:
        """Move a frame's beginning to the front, so that its rest has room."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._small[self._start : self._end]
            self._small[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
