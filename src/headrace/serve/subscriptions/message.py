"""Messages to subscribers: JSON, made once for all who get the same. Layouts: ``docs/serve.md``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

__all__ = ["Message", "in_parts", "message"]

PART_BYTES = 64 * 1024
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Message:
    kind: str
    data: bytes
    cursor: str | None = None
    _text: str | None = field(default=None, repr=False)
    _event: bytes | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """For a WebSocket."""
        if self._text is None:
            self._text = self.data.decode()
        return self._text

    @property
    def event(self) -> bytes:
        """As an event that a server sends."""
        if self._event is None:
            number = f"id: {self.cursor}\n" if self.cursor is not None else ""
            # A line feed is only ever a blank in JSON.
            body = self.data.replace(b"\n", b" ").replace(b"\r", b" ")
            self._event = f"event: {self.kind}\n{number}data: ".encode() + body + b"\n\n"
        return self._event


def message(kind: str, told: dict[str, Any]) -> Message:
    return Message(kind, _encode({"type": kind, **told}), told.get("cursor"))


def in_parts(
    kind: str, rows: Iterable[bytes], gone: Iterable[bytes], last: dict[str, Any] | None
) -> list[Message]:
    """Messages of a bounded size; the last one says ``last``, and what is true once all are there. None if more
    comes behind these.
    """
    made: list[Message] = []
    part_rows: list[bytes] = []
    part_gone: list[bytes] = []
    size = 0
    for one, to in _both(rows, gone, part_rows, part_gone):
        if size + len(one) > PART_BYTES and size:
            made.append(Message(kind, _part(kind, part_rows, part_gone, b"false")))
            part_rows.clear()
            part_gone.clear()
            size = 0
        to.append(one)
        size += len(one) + 1
    tail = b"false" if last is None else b"true," + _encode(last)[1:-1]
    cursor = None if last is None else last.get("cursor")
    made.append(Message(kind, _part(kind, part_rows, part_gone, tail), cursor))
    return made


def _both(
    rows: Iterable[bytes], gone: Iterable[bytes], to_rows: list[bytes], to_gone: list[bytes]
) -> Iterator[tuple[bytes, list[bytes]]]:
    for one in rows:
        yield one, to_rows
    for one in gone:
        yield one, to_gone


def _part(kind: str, rows: list[bytes], gone: list[bytes], tail: bytes) -> bytes:
    return b'{"type":"%s","rows":[%s],"gone":[%s],"last":%s}' % (
        kind.encode(),
        b",".join(rows),
        b",".join(gone),
        tail,
    )
