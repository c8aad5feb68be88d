"""A subscriber that keeps a copy, and holds every message against what the protocol promises."""

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
    """The other side has ended it; with its last message, if there was one."""


class Copy:
    """``check`` is called with the position and the rows after every whole step."""

    def __init__(self, check: Callable[[dict[str, Any], Rows], None] = lambda position, rows: None) -> None:
        self._check = check
        self.rows: Rows = {}
        self.cursor: str | None = None
        self.position: dict[str, Any] | None = None
        self.key: list[str] = []
        self.seen: list[tuple[str, Any]] = []
        """Kinds of messages, with what was said about batches."""
        self.frames = 0
        self.resumed = 0
        self._pending: Rows | None = None
        self._greeted = False

    def connected(self) -> None:
        """Half a step, or half a snapshot, of the connection before is nothing."""
        self._greeted = False
        self._pending = None

    def take(self, told: dict[str, Any]) -> None:
        kind = told["type"]
        self.seen.append((kind, told.get("batches")))
        if kind == "hello":
            self._greeted = True
            self.key = told["key"]
            self.resumed += told["resumed"]
            assert told["resumed"] == ("cursor" in told)
            if not told["resumed"]:
                self.rows, self.position, self.cursor, self._pending = {}, None, None, {}
        elif kind == "snapshot":
            assert self._greeted
            assert self.position is None
            self._step(told, {} if self._pending is None else self._pending)
        elif kind == "changes":
            assert self._greeted
            assert self.position is not None
            before = self.position
            if self._step(told, dict(self.rows) if self._pending is None else self._pending):
                since = told["since"]
                assert since["offsets"] == before["offsets"], (since, before)
                if "batch" in since:
                    assert (since["generation"], since["batch"]) == (before["generation"], before["batch"])
                if "batches" in told:
                    first, last = told["batches"]["first"], told["batches"]["last"]
                    assert (first, last) == (before["batch"] + 1, told["position"]["batch"])
                    assert first <= last
                self.frames += 1
        elif kind == "heartbeat":
            assert told["position"] == self.position
        elif kind == "reset":
            self._greeted = False
        else:
            assert kind == "bye", told
            self.cursor = told["cursor"] or self.cursor
            raise Ended(told)

    def _step(self, told: dict[str, Any], rows: Rows) -> bool:
        """Whether it is whole now."""
        for row in told["rows"]:
            rows[self._key(row)] = row
        for key in told["gone"]:
            rows.pop(self._key(key), None)
        assert ("cursor" in told) == ("position" in told) == told["last"]
        if not told["last"]:
            self._pending = rows
            return False
        self.rows, self._pending = rows, None
        self.cursor, self.position = told["cursor"], told["position"]
        self._check(told["position"], rows)
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
    **asked: Any,
) -> AsyncIterator[tuple[ClientConnection, AsyncIterator[dict[str, Any]]]]:
    """The connection, and its messages; ``asked`` is the rest of the first message. ``narrow`` if little is taken
    ahead of who reads.
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
    ) as made:
        wanted = {name.rstrip("_"): value for name, value in asked.items() if value is not None}
        if cursor is not None:
            wanted["cursor"] = cursor
        await made.send(json.dumps({"type": "subscribe", **wanted}))
        yield made, _messages(made)


async def _messages(made: ClientConnection) -> AsyncIterator[dict[str, Any]]:
    try:
        async for one in made:
            yield json.loads(one)
    except ConnectionClosed as error:
        raise Ended(str(error)) from error


@contextlib.asynccontextmanager
async def events(
    port: int, view: str, cursor: str | None = None, *, headers: dict[str, str] | None = None, **asked: Any
) -> AsyncIterator[tuple[int, AsyncIterator[dict[str, Any]]]]:
    """The status of the answer, and its events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    given = {name.rstrip("_"): value for name, value in asked.items() if value is not None}
    if cursor is not None:
        given["cursor"] = cursor
    query = urllib.parse.urlencode(given)
    sent = {"Host": f"127.0.0.1:{port}", **(headers or {})}
    head = "".join(f"{name}: {text}\r\n" for name, text in sent.items())
    writer.write(f"GET /v1/views/{view}/changes?{query} HTTP/1.1\r\n{head}\r\n".encode())
    try:
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        yield status, _events(reader)
    finally:
        writer.transport.abort()


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Of a body in chunks."""
    rest = b""
    while True:
        size = int((await reader.readline() or b"0").strip() or b"0", 16)
        if size == 0:
            raise Ended("the answer has ended")
        rest += await reader.readexactly(size)
        await reader.readline()
        while b"\n\n" in rest:
            one, rest = rest.split(b"\n\n", 1)
            fields = dict(line.split(b": ", 1) for line in one.split(b"\n"))
            if b"data" not in fields:
                continue
            told = json.loads(fields[b"data"])
            assert told["type"] == fields[b"event"].decode()
            assert fields.get(b"id", b"").decode() == (told.get("cursor") or "")
            yield told
