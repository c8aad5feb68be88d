"""Clients that send any text over HTTP and PostgreSQL's protocol, and retain every byte of the response."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import struct
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["HttpClient", "Reply", "Unanswered", "WireClient"]

_PROTOCOL = 196_608
_CODE = re.compile(r"\[(HR-[A-Z0-9-]+)\]")


class Unanswered(Exception):
    """The response did not arrive in time, or the connection closed."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: str
    """The HTTP status, or the SQLSTATE in PostgreSQL's protocol."""
    code: str
    """Empty if the request succeeded."""
    text: str
    """Everything that arrived, including headers and settings."""
    rows: list[Any] | None = None
    document: Any = None
    """The parsed JSON, if any."""


class HttpClient:
    """One connection, reopened after it was closed."""

    def __init__(self, port: int, token: str, patience_s: float) -> None:
        self._port = port
        self._token = token
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Reply:
        return self._call("GET", f"{path}?{urllib.parse.urlencode(query)}" if query else path, None)

    def post(self, path: str, body: Any) -> Reply:
        return self._call("POST", path, json.dumps(body).encode("utf-8", "surrogatepass"))

    def _call(self, method: str, path: str, body: bytes | None) -> Reply:
        headers = {
            "Host": f"127.0.0.1:{self._port}",
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
        }
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            goes_on = answer.getheader("content-type", "").startswith("text/event-stream")
            raw = answer.read1() if goes_on else answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unanswered(f"{type(error).__name__}: {error}") from None
        if goes_on:
            self._connection.close()
        return _reply(answer, raw)


def _reply(answer: http.client.HTTPResponse, raw: bytes) -> Reply:
    text = f"{answer.headers}\n{raw.decode('utf-8', 'replace')}"
    media = answer.getheader("content-type", "")
    document: Any = None
    if "json" in media and raw:
        document = json.loads(raw, parse_constant=_refuse_constant)
        # Search the text as a person reads it, without escapes.
        text += json.dumps(document, ensure_ascii=False)
    rows = document.get("rows") if isinstance(document, dict) else None
    code = "" if answer.status == 200 else str(document.get("code")) if isinstance(document, dict) else "none"
    return Reply(str(answer.status), code, text, rows, document)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class WireClient:
    """PostgreSQL's protocol without a driver. Texts can contain anything but NUL."""

    def __init__(
        self, port: int, token: str, patience_s: float, *, user: str = "me", database: str = "shop"
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), patience_s)
        self._token = token
        names = f"user\0{user}\0database\0{database}\0\0".encode()
        self._socket.sendall(struct.pack(">ii", len(names) + 8, _PROTOCOL) + names)
        self.welcome = self._until_ready()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def simple(self, text: str) -> Reply:
        self._send(b"Q", text.encode() + b"\0")
        return self._until_ready()

    def extended(self, text: str, values: Sequence[str] = ()) -> Reply:
        encoded = b"".join(struct.pack(">i", len(value.encode())) + value.encode() for value in values)
        self._send(b"P", b"\0" + text.encode() + b"\0" + struct.pack(">h", 0))
        self._send(b"B", b"\0\0" + struct.pack(">hh", 0, len(values)) + encoded + struct.pack(">h", 0))
        self._send(b"E", b"\0" + struct.pack(">i", 0))
        self._send(b"S", b"")
        return self._until_ready()

    def cursor(self, text: str) -> Reply:
        """Declare a cursor and read it to its end, in its own transaction."""
        self.simple("BEGIN")
        reply = self.simple(f"DECLARE c CURSOR FOR {text}")
        if not reply.code:
            reply = self.simple("FETCH ALL FROM c")
        self.simple("ROLLBACK")
        return reply

    def _send(self, letter: bytes, body: bytes) -> None:
        try:
            self._socket.sendall(letter + struct.pack(">i", len(body) + 4) + body)
        except OSError as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from None

    def _until_ready(self) -> Reply:
        """Read up to the ready message. The first error counts; everything before and after it is in the text."""
        texts: list[str] = []
        rows: list[Any] = []
        state = code = ""
        while True:
            letter, body = self._message()
            if letter == b"R" and struct.unpack_from(">i", body)[0] == 3:
                self._send(b"p", self._token.encode() + b"\0")
                continue
            if letter == b"D":
                rows.append(_fields(body))
                texts += [row for row in rows[-1] if row is not None]
            elif letter == b"E" and not state:
                fields = {
                    field[:1]: field[1:] for field in body.decode("utf-8", "replace").split("\0") if field
                }
                state = fields.get("C", "")
                match = _CODE.search(fields.get("M", ""))
                code = match[1] if match else state
            if letter == b"Z":
                return Reply(state, code, "\n".join(texts), rows)
            texts.append(body.decode("utf-8", "replace").replace("\0", "\n"))

    def _message(self) -> tuple[bytes, bytes]:
        head = self._exactly(5)
        return head[:1], self._exactly(struct.unpack(">i", head[1:])[0] - 4)

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            try:
                some = self._socket.recv(count - len(found))
            except OSError as error:
                raise Unanswered(f"{type(error).__name__}: {error}") from None
            if not some:
                raise Unanswered("the connection was closed")
            found += some
        return bytes(found)


def _fields(body: bytes) -> list[str | None]:
    (count,) = struct.unpack_from(">h", body)
    at, found = 2, []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", body, at)
        at += 4
        found.append(None if size < 0 else body[at : at + size].decode("utf-8", "replace"))
        at += max(size, 0)
    return found
