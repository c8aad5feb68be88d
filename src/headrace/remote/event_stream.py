"""Server-sent events out of bytes, in whatever pieces those come."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.remote.errors import AnswerUnfit

__all__ = ["Event", "EventStream"]

_EVENT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: bytes


class EventStream:
    """An event counts when its empty line is there; what the stream breaks off in the middle of never was."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def take(self, part: bytes) -> list[Event]:
        self._rest += part
        if b"\n" not in part:
            self._expect_bounded(len(self._rest))
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        found: list[Event] = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            self._size += len(line)
            self._expect_bounded(0)
            if line:
                self._line(line)
                continue
            if self._data:
                found.append(Event(self._name or "message", b"\n".join(self._data)))
            self._name, self._data, self._size = "", [], 0
        self._expect_bounded(len(rest))
        return found

    def _expect_bounded(self, rest: int) -> None:
        if self._size + rest > _EVENT_BYTES_MAX:
            raise AnswerUnfit(f"an event of more than {_EVENT_BYTES_MAX} bytes")

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value.decode(errors="replace")
        elif name == b"data":
            self._data.append(value)
