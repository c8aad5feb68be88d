"""A subscriber by WebSocket that costs little, so that a thousand fit into one process; it reads when it is told to.

It speaks as much of the protocol as a server that does not compress needs, and holds every message against what was
promised: a step begins where the one before has ended, or there was a reset and a snapshot.
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


class _Place(msgspec.Struct):
    batch: int
    offsets: dict[str, int]


class _Batches(msgspec.Struct):
    first: int
    last: int


class _Told(msgspec.Struct):
    type: str
    rows: list[_Row] = []
    gone: list[_Key] = []
    last: bool = False
    resumed: bool = False
    since: _Place | None = None
    position: _Place | None = None
    batches: _Batches | None = None
    cursor: str | None = None
    close: int = 0


_decode = msgspec.json.Decoder(_Told).decode


class SocketReader(asyncio.Protocol):
    """``moved`` is called whenever there is something new to know of it."""

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
        self.place: _Place | None = None
        self.steps: list[tuple[int, int]] = []
        """First and last batch of each step."""
        self.hellos = 0
        self.resets = 0
        self.resumed = False
        self.bye: _Told | None = None
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
        """``known`` is itself in the connection before, whose rows it still has. ``narrow`` if the kernel takes little
        ahead of it.
        """
        made = socket.socket()
        made.setblocking(False)
        if narrow:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, ("127.0.0.1", port))
        _, one = await loop.create_connection(
            lambda: cls(view, None if known is None else known.cursor, moved), sock=made
        )
        if known is not None:
            one.rows, one.place = dict(known.rows), known.place
        return one

    @property
    def batch(self) -> int:
        return -2 if self.place is None else self.place.batch

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

    # What the event loop tells

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
            self.problems.append(f"it was not let in: {head[:100]!r}")
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
        # The mask is nothing, so what is sent is what is meant.
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

    # What the server says

    def _take(self, opcode: int, data: bytes) -> None:
        if opcode == _CLOSE:
            self.close_code = int.from_bytes(data[:2], "big")
            self._send(_CLOSE, data[:2])
            return
        if opcode != _TEXT:
            self.problems.append(f"a frame of kind {opcode}")
            return
        told = _decode(data)
        getattr(self, f"_take_{told.type}")(told)

    def _take_hello(self, told: _Told) -> None:
        self.hellos += 1
        self.resumed = told.resumed
        if not told.resumed:
            self.rows, self.place, self.cursor, self._pending = {}, None, None, {}
        elif self.place is None:
            self.problems.append("it goes on from where nobody was")

    def _take_snapshot(self, told: _Told) -> None:
        if self.place is not None:
            self.problems.append("a snapshot came where changes go on")
        self._step(told, {} if self._pending is None else self._pending)

    def _take_changes(self, told: _Told) -> None:
        before = self.place
        if before is None:
            self.problems.append("changes came before the rows")
            return
        if self._step(told, dict(self.rows) if self._pending is None else self._pending):
            if told.since != before:
                self.problems.append(f"a step begins at {told.since}, and the one before ended at {before}")
            if told.batches is None or told.batches.first != before.batch + 1:
                self.problems.append(f"batches {told.batches} behind {before.batch}")
            else:
                self.steps.append((told.batches.first, told.batches.last))

    def _take_heartbeat(self, told: _Told) -> None:
        if told.position != self.place:
            self.problems.append(f"a heartbeat at {told.position}, not at {self.place}")

    def _take_reset(self, told: _Told) -> None:
        self.resets += 1

    def _take_bye(self, told: _Told) -> None:
        self.bye = told
        if told.cursor is not None and told.cursor != self.cursor:
            self.problems.append("the cursor of the last message is another than that of the last step")

    def _step(self, told: _Told, rows: dict[str, int]) -> bool:
        rows.update((row.product, row.amount) for row in told.rows)
        for key in told.gone:
            rows.pop(key.product, None)
        if not told.last:
            self._pending = rows
            return False
        self.rows, self._pending = rows, None
        self.cursor, self.place = told.cursor, told.position
        return True
