"""A buffered stream of bytes that is read by length or up to a delimiter. The size of a field is limited."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.cli.format.modifiers import InputError

__all__ = ["FIELD_BYTES_MAX", "Source"]

FIELD_BYTES_MAX = 128 * 1024 * 1024
_KEEP_BYTES = 1 << 16
_DIGITS = re.compile(rb"\d*")
_JSON_SPACE = b" \t\r\n"


class Source:
    """``read`` returns the next bytes as soon as they arrive, and empty bytes at the end."""

    def __init__(self, read: Callable[[], bytes], *, field_bytes_max: int = FIELD_BYTES_MAX) -> None:
        self._read = read
        self._field_bytes_max = field_bytes_max
        self._buffer = bytearray()
        self._at = 0
        self._dropped = 0
        self._ended = False

    @property
    def consumed(self) -> int:
        """The number of bytes consumed so far."""
        return self._dropped + self._at

    def _fill(self) -> bool:
        """Read more; False at the end of the stream."""
        if self._ended:
            return False
        if self._at > _KEEP_BYTES:
            del self._buffer[: self._at]
            self._dropped += self._at
            self._at = 0
        if len(self._buffer) - self._at > self._field_bytes_max:
            raise InputError(
                f"one field of the input is longer than {self._field_bytes_max} bytes",
                hint="check that the input contains the format's delimiter",
            )
        data = self._read()
        self._ended = not data
        self._buffer += data
        return not self._ended

    def _take(self, end: int) -> bytes:
        data = bytes(self._buffer[self._at : end])
        self._at = end
        return data

    def at_end(self) -> bool:
        return self._at >= len(self._buffer) and not self._fill()

    def exactly(self, size: int) -> bytes | None:
        """Read ``size`` bytes; None if the stream ends earlier."""
        if size > self._field_bytes_max:
            raise InputError(f"the input has a length of {size} bytes (maximum {self._field_bytes_max})")
        while len(self._buffer) - self._at < size:
            if not self._fill():
                return None
        return self._take(self._at + size)

    def until(self, delimiter: bytes) -> tuple[bytes, bool]:
        """Read the bytes before the delimiter, and consume the delimiter too. If the stream has no delimiter, return
        the rest of the stream and False.
        """
        searched = self._at
        while (found := self._buffer.find(delimiter, searched)) < 0:
            searched = max(self._at, len(self._buffer) - len(delimiter) + 1)
            before = self._at
            if not self._fill():
                return self._take(len(self._buffer)), False
            searched -= before - self._at
        data = self._take(found)
        self._at += len(delimiter)
        return data, True

    def rest(self) -> bytes:
        while self._fill():
            pass
        return self._take(len(self._buffer))

    def digits(self) -> bytes:
        while True:
            match = _DIGITS.match(self._buffer, self._at)
            end = match.end() if match else self._at
            if end < len(self._buffer) or not self._fill():
                return self._take(end)

    def skip_space(self) -> None:
        while not self.at_end() and self._buffer[self._at] in _JSON_SPACE:
            self._at += 1

    def json_value(self) -> bytes | None:
        """Read the bytes of one JSON value. Brackets and quotes delimit it; the JSON is not validated here."""
        self.skip_space()
        depth, in_string, escaped, scan = 0, False, False, 0
        while True:
            if self._at + scan >= len(self._buffer) and not self._fill():
                return self._take(len(self._buffer)) if scan and not depth and not in_string else None
            char = self._buffer[self._at + scan]
            scan += 1
            if in_string:
                in_string = escaped or char != 0x22
                escaped = char == 0x5C and not escaped
                if not in_string and not depth:
                    break
            elif char == 0x22:
                in_string = True
            elif char in b"{[":
                depth += 1
            elif char in b"}]":
                depth -= 1
                if depth <= 0:
                    break
            elif not depth and char in _JSON_SPACE:
                scan -= 1
                break
        return self._take(self._at + scan)
