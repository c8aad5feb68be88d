"""A subscriber that keeps a copy of the view, and checks every message against the protocol. A *step* is the set of
changes that a subscriber receives at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket as sockets
import urllib.parse
from collections.abc import AsyncIterator, Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

__all__ = ["Copy", "Ended", "events", "socket"]

Rows = dict[tuple[Any, ...], dict[str, Any]]


class Ended(Exception):
    """The other side closed the connection. The argument is its last message, if any."""


class Copy:
    """``check`` is called with the position and the rows after every whole step."""

    def __init__(self, check: Callable[[dict[str, Any], Rows], None] = lambda position, rows: None) -> None:
        self._check = check
        self.rows: Rows = {}
        self.cursor: str | None = None
        self.position: dict[str, Any] | None = None
        self.key: list[str] = []
        self.seen: list[tuple[str, Any]] = []
        """The types of the received messages, with their batches."""
        self.frames = 0
        self.resumed = 0
        self._pending: Rows | None = None
        self._greeted = False

    def connected(self) -> None:
        """Discard a partial step or snapshot of the previous connection."""
        self._greeted = False
        self._pending = None

    def take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        self.seen.append((kind, message.get("batches")))
        if kind == "hello":
            self._greeted = True
            self.key = message["key"]
            self.resumed += message["resumed"]
            assert message["resumed"] == ("cursor" in message)
            if not message["resumed"]:
                self.rows, self.position, self.cursor, self._pending = {}, None, None, {}
        elif kind == "snapshot":
            assert self._greeted
            assert self.position is None
            self._step(message, {} if self._pending is None else self._pending)
        elif kind == "changes":
            assert self._greeted
            assert self.position is not None
            before = self.position
            if self._step(message, dict(self.rows) if self._pending is None else self._pending):
                since = message["since"]
                assert since["offsets"] == before["offsets"], (since, before)
                if "batch" in since:
                    assert (since["generation"], since["batch"]) == (before["generation"], before["batch"])
                if "batches" in message:
                    first, last = message["batches"]["first"], message["batches"]["last"]
                    assert (first, last) == (before["batch"] + 1, message["position"]["batch"])
                    assert first <= last
                self.frames += 1
        elif kind == "heartbeat":
            assert message["position"] == self.position
        elif kind == "reset":
            self._greeted = False
        else:
            assert kind == "bye", message
            self.cursor = message["cursor"] or self.cursor
            raise Ended(message)

    def _step(self, message: dict[str, Any], rows: Rows) -> bool:
        """Apply a message, and return whether it completes its step."""
        for row in message["rows"]:
            rows[self._key(row)] = row
        for key in message["gone"]:
            rows.pop(self._key(key), None)
        assert ("cursor" in message) == ("position" in message) == message["last"]
        if not message["last"]:
            self._pending = rows
            return False
        self.rows, self._pending = rows, None
        self.cursor, self.position = message["cursor"], message["position"]
        self._check(message["position"], rows)
        return True

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)


@contextlib.asynccontextmanager
async def socket(
    port: int,
    view: str,
    cursor: str | None = None,
    *,
    headers: dict[str, str] | None = None,
    narrow: bool = False,
    **options: Any,
) -> AsyncIterator[tuple[ClientConnection, AsyncIterator[dict[str, Any]]]]:
    """Connect, and yield the connection and its messages. ``options`` are the other fields of the first message.
    ``narrow`` limits how much the kernel buffers.
    """
    address = f"ws://127.0.0.1:{port}/v1/views/{view}/changes"
    more: dict[str, Any] = {}
    if narrow:
        small = sockets.socket()
        small.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4_096)
        small.connect(("127.0.0.1", port))
        more = {"sock": small, "max_queue": 1}
    async with connect(
        address, max_size=None, compression=None, additional_headers=headers, open_timeout=30, **more
    ) as connection:
        wanted = {name.rstrip("_"): value for name, value in options.items() if value is not None}
        if cursor is not None:
            wanted["cursor"] = cursor
        await connection.send(json.dumps({"type": "subscribe", **wanted}))
        yield connection, _messages(connection)


async def _messages(connection: ClientConnection) -> AsyncIterator[dict[str, Any]]:
    try:
        async for message in connection:
            yield json.loads(message)
    except ConnectionClosed as error:
        raise Ended(str(error)) from error


@contextlib.asynccontextmanager
async def events(
    port: int, view: str, cursor: str | None = None, *, headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[tuple[int, AsyncIterator[dict[str, Any]]]]:
    """Yield the status of the response, and its events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    query = {name.rstrip("_"): value for name, value in options.items() if value is not None}
    if cursor is not None:
        query["cursor"] = cursor
    encoded = urllib.parse.urlencode(query)
    sent = {"Host": f"127.0.0.1:{port}", **(headers or {})}
    head = "".join(f"{name}: {text}\r\n" for name, text in sent.items())
    writer.write(f"GET /v1/views/{view}/changes?{encoded} HTTP/1.1\r\n{head}\r\n".encode())
    try:
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        yield status, _events(reader)
    finally:
        writer.transport.abort()


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a chunked body."""
    rest = b""
    while True:
        size = int((await reader.readline() or b"0").strip() or b"0", 16)
        if size == 0:
            raise Ended("the response has ended")
        rest += await reader.readexactly(size)
        await reader.readline()
        while b"\n\n" in rest:
            event, rest = rest.split(b"\n\n", 1)
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n"))
            if b"data" not in fields:
                continue
            message = json.loads(fields[b"data"])
            assert message["type"] == fields[b"event"].decode()
            assert fields.get(b"id", b"").decode() == (message.get("cursor") or "")
            yield message
