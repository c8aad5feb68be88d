"""A WebSocket subscriber that costs little, so that a thousand fit into one process. It reads on request.

It implements only what a server without compression needs, and checks every message. A *step* is the set of changes
that it receives at once: it must begin where the previous step ended, or follow a reset and a snapshot.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable

import msgspec

__all__ = ["SocketReader"]

_BUFFER_BYTES = 4_096
_TEXT, _CLOSE = 0x1, 0x8


class _Row(msgspec.Struct):
    product: str
    amount: int


class _Key(msgspec.Struct):
    product: str


class _Position(msgspec.Struct):
    batch: int
    offsets: dict[str, int]


class _Batches(msgspec.Struct):
    first: int
    last: int


class _Message(msgspec.Struct):
    type: str
    rows: list[_Row] = []
    gone: list[_Key] = []
    last: bool = False
    resumed: bool = False
    since: _Position | None = None
    position: _Position | None = None
    batches: _Batches | None = None
    cursor: str | None = None
    close: int = 0


_decode = msgspec.json.Decoder(_Message).decode


class SocketReader(asyncio.Protocol):
    """``moved`` is called on every change of the subscriber's state."""

    def __init__(self, view: str, cursor: str | None, moved: Callable[[], None]) -> None:
        self._view = view
        self._moved = moved
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._upgraded = False
        self.rows: dict[str, int] = {}
        """The amount of each product."""
        self._pending: dict[str, int] | None = None
        self.cursor = cursor
        self.position: _Position | None = None
        self.steps: list[tuple[int, int]] = []
        """First and last batch of each step."""
        self.hellos = 0
        self.resets = 0
        self.resumed = False
        self.bye: _Message | None = None
        self.close_code = 0
        self.is_closed = False
        self.problems: list[str] = []

    @classmethod
    async def open(
        cls,
        port: int,
        view: str,
        moved: Callable[[], None],
        *,
        known: SocketReader | None = None,
        narrow: bool = False,
    ) -> SocketReader:
        """Connect. ``known`` is the reader of the subscriber's previous connection. The new reader continues with its
        rows and its cursor. ``narrow`` limits how much the kernel buffers.
        """
        connection = socket.socket()
        connection.setblocking(False)
        if narrow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", port))
        _, reader = await loop.create_connection(
            lambda: cls(view, None if known is None else known.cursor, moved), sock=connection
        )
        if known is not None:
            reader.rows, reader.position = dict(known.rows), known.position
        return reader

    @property
    def batch(self) -> int:
        return -2 if self.position is None else self.position.batch

    def pause(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def read_on(self) -> None:
        assert self._transport is not None
        if not self.is_closed:
            self._transport.resume_reading()

    def end(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(
            f"GET /v1/views/{self._view}/changes HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._moved()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded and not self._greet():
            return
        while (frame := self._frame()) is not None:
            self._take(*frame)
        self._moved()

    def _greet(self) -> bool:
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 101 "):
            self.problems.append(f"a subscriber was refused: {head[:100]!r}")
            self.end()
            return False
        self._upgraded = True
        self._buffer = bytearray(rest)
        wanted = {"type": "subscribe", **({} if self.cursor is None else {"cursor": self.cursor})}
        self._send(_TEXT, json.dumps(wanted).encode())
        return True

    def _send(self, opcode: int, data: bytes) -> None:
        assert self._transport is not None
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
        # The mask is zero, so the sent bytes are the message.
        self._transport.write(bytes([0x80 | opcode]) + size + b"\0\0\0\0" + data)

    def _frame(self) -> tuple[int, bytes] | None:
        held = self._buffer
        if len(held) < 2:
            return None
        size, begin = held[1], 2
        if size >= 126:
            begin = 4 if size == 126 else 10
            size = int.from_bytes(held[2:begin], "big")
            if len(held) < begin:
                return None
        if len(held) < begin + size:
            return None
        opcode, data = held[0] & 0x0F, bytes(held[begin : begin + size])
        del held[: begin + size]
        return opcode, data

    # Messages of the server

    def _take(self, opcode: int, data: bytes) -> None:
        if opcode == _CLOSE:
            self.close_code = int.from_bytes(data[:2], "big")
            self._send(_CLOSE, data[:2])
            return
        if opcode != _TEXT:
            self.problems.append(f"an unexpected frame with the opcode {opcode}")
            return
        message = _decode(data)
        getattr(self, f"_take_{message.type}")(message)

    def _take_hello(self, message: _Message) -> None:
        self.hellos += 1
        self.resumed = message.resumed
        if not message.resumed:
            self.rows, self.position, self.cursor, self._pending = {}, None, None, {}
        elif self.position is None:
            self.problems.append("a subscriber resumes at an unknown position")

    def _take_snapshot(self, message: _Message) -> None:
        if self.position is not None:
            self.problems.append("a snapshot arrived instead of further changes")
        self._step(message, {} if self._pending is None else self._pending)

    def _take_changes(self, message: _Message) -> None:
        before = self.position
        if before is None:
            self.problems.append("changes arrived before the snapshot")
            return
        if self._step(message, dict(self.rows) if self._pending is None else self._pending):
            if message.since != before:
                self.problems.append(
                    f"a step begins at {message.since}, but the previous step ended at {before}"
                )
            if message.batches is None or message.batches.first != before.batch + 1:
                self.problems.append(f"batches {message.batches} arrived after batch {before.batch}")
            else:
                self.steps.append((message.batches.first, message.batches.last))

    def _take_heartbeat(self, message: _Message) -> None:
        if message.position != self.position:
            self.problems.append(
                f"a heartbeat has the position {message.position} instead of {self.position}"
            )

    def _take_reset(self, message: _Message) -> None:
        self.resets += 1

    def _take_bye(self, message: _Message) -> None:
        self.bye = message
        if message.cursor is not None and message.cursor != self.cursor:
            self.problems.append("the cursor of the last message differs from the cursor of the last step")

    def _step(self, message: _Message, rows: dict[str, int]) -> bool:
        rows.update((row.product, row.amount) for row in message.rows)
        for key in message.gone:
            rows.pop(key.product, None)
        if not message.last:
            self._pending = rows
            return False
        self.rows, self._pending = rows, None
        self.cursor, self.position = message.cursor, message.position
        return True
