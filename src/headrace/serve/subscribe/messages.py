"""Messages to subscribers, in JSON. A message is encoded once for all its subscribers. ``docs/serve.md`` describes the
format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.serve.errors import ShuttingDown, SlowReader
from headrace.serve.http.problem import problem_of, unexpected

__all__ = ["Message", "close_code", "close_message", "error_code", "in_parts", "new_message"]

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
        """The message as the text of a WebSocket message."""
        if self._text is None:
            self._text = self.data.decode()
        return self._text

    @property
    def event(self) -> bytes:
        """The message as a server-sent event."""
        if self._event is None:
            id_line = f"id: {self.cursor}\n" if self.cursor is not None else ""
            # In JSON a line feed is always whitespace.
            body = self.data.replace(b"\n", b" ").replace(b"\r", b" ")
            self._event = f"event: {self.kind}\n{id_line}data: ".encode() + body + b"\n\n"
        return self._event


def new_message(kind: str, body: dict[str, Any]) -> Message:
    return Message(kind, _encode({"type": kind, **body}), body.get("cursor"))


def in_parts(
    kind: str, rows: Iterable[bytes], gone: Iterable[bytes], last: dict[str, Any] | None
) -> list[Message]:
    """Split rows and keys into messages of a bounded size.

    The last message includes the fields ``last``, which are valid once the client has received all messages. ``last``
    is None if the caller sends more messages after these.
    """
    messages: list[Message] = []
    part_rows: list[bytes] = []
    part_gone: list[bytes] = []
    size = 0
    for text, part in _with_target(rows, gone, part_rows, part_gone):
        if size + len(text) > PART_BYTES and size:
            messages.append(Message(kind, _part(kind, part_rows, part_gone, b"false")))
            part_rows.clear()
            part_gone.clear()
            size = 0
        part.append(text)
        size += len(text) + 1
    tail = b"false" if last is None else b"true," + _encode(last)[1:-1]
    cursor = None if last is None else last.get("cursor")
    messages.append(Message(kind, _part(kind, part_rows, part_gone, tail), cursor))
    return messages


def _with_target(
    rows: Iterable[bytes], gone: Iterable[bytes], to_rows: list[bytes], to_gone: list[bytes]
) -> Iterator[tuple[bytes, list[bytes]]]:
    for row in rows:
        yield row, to_rows
    for key in gone:
        yield key, to_gone


def _part(kind: str, rows: list[bytes], gone: list[bytes], tail: bytes) -> bytes:
    return b'{"type":"%s","rows":[%s],"gone":[%s],"last":%s}' % (
        kind.encode(),
        b",".join(rows),
        b",".join(gone),
        tail,
    )


_RETRY_MS = 1_000
_RESTART = 1012
_SLOW = 4000
_RETRIABLE = (408, 429, 500, 503, 504)


def close_code(error: BaseException) -> int:
    """The WebSocket's close code. It is 4000 plus the HTTP status, except for slow readers, a shutdown and status
    504.
    """
    match error:
        case SlowReader():
            return _SLOW
        case ShuttingDown():
            return _RESTART
        case HeadraceError():
            status = problem_of(error, "").status
            return 4503 if status == 504 else 4000 + status
    return 4500


def error_code(error: BaseException) -> str:
    return error.code if isinstance(error, HeadraceError) else "HR-SERVE-FAULT"


def close_message(error: BaseException, cursor: str | None, request_id: str) -> Message:
    if isinstance(error, (SlowReader, ShuttingDown)):
        body = {"code": error.code, "detail": error.message, "next": error.hint}
        retry = True
    else:
        problem = (
            problem_of(error, request_id) if isinstance(error, HeadraceError) else unexpected(request_id)
        )
        document = msgspec.json.decode(problem.body, type=dict[str, object])
        body = {name: str(document.get(name, "")) for name in ("code", "detail", "next")}
        retry = problem.status in _RETRIABLE
    return new_message(
        "bye",
        {"close": close_code(error), **body, "cursor": cursor, "retry_ms": _RETRY_MS if retry else None},
    )
