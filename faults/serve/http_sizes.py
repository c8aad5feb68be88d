"""False sizes over HTTP: of bodies, chunks, request heads and WebSocket frames, with and without a token."""

from __future__ import annotations

import functools
import gzip
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from faults.serve.scene import INPUT, VIEW

__all__ = ["BODY_MAX", "CLOSED", "FalseSize", "http_code", "http_lies", "socket_lies"]

CLOSED = ""
"""The connection closes without a response."""


@dataclass(frozen=True, slots=True)
class FalseSize:
    """``expected`` are the codes that may arrive before the connection closes: an HTTP status, the code of a WebSocket
    close frame, a SQLSTATE, or ``CLOSED``.
    """

    name: str
    raw: bytes
    expected: tuple[str, ...]
    waits: bool = False
    """Whether the size is within the limits. If so, the server waits for the bytes until the receive deadline."""
    greeting: bytes = b""
    """Bytes that are sent before ``raw``, and get a response."""


BODY_MAX = 128 << 10
"""The limit in the settings of the attacked server, also for messages of PostgreSQL's protocol."""
_HEAD_MAX = 32 << 10
_MESSAGE_MAX = 64 << 10
_UPGRADED = b"HTTP/1.1 101 "
_TOO_LARGE, _HEAD, _NOT_HTTP, _NO_TOKEN, _MEDIA = "413", "431", "400", "401", "415"


def _head(line: str, *headers: str, token: str = "") -> bytes:
    lines = [line, "Host: 127.0.0.1", *headers]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _post(*headers: str, token: str) -> bytes:
    return _head(
        f"POST /v1/topics/{INPUT}/records HTTP/1.1", "Content-Type: application/json", *headers, token=token
    )


def http_lies(rng: random.Random, writer: str) -> Iterator[FalseSize]:
    """``writer`` is a token that may write records. Cases with a body also run without a token."""
    for token in (writer, ""):
        who = "with a token" if token else "before the login"
        yield from _body_lies(rng, token, who)
    yield from _length_lies(writer)
    yield from _chunk_lies(rng, writer)
    yield from _head_lies(writer)
    yield from _compressed_lies(writer)
    yield from _pipelining_lies(writer)


def _body_lies(rng: random.Random, token: str, who: str) -> Iterator[FalseSize]:
    expected = (_TOO_LARGE if token else _NO_TOKEN,)
    for size in (2**31 - 1, 2**31, 2**32, 2**63 - 1, BODY_MAX + 1):
        sent = _post(f"Content-Length: {size}", token=token) + rng.randbytes(rng.randint(0, 2_000))
        yield FalseSize(f"a body of {size}, {who}", sent, expected)
    sent = _post(f"Content-Length: {BODY_MAX}", token=token) + bytes(rng.randint(1, 50_000))
    yield FalseSize(
        f"a body of which few bytes are sent, {who}",
        sent,
        ("408", CLOSED) if token else expected,
        token != "",
    )
    sent = _head("GET /healthz HTTP/1.1", f"Content-Length: {2**31}", token=token) + bytes(100)
    yield FalseSize(f"a body of 2 GiB for a route without one, {who}", sent, ("200",), waits=True)


def _length_lies(token: str) -> Iterator[FalseSize]:
    for text in ("-1", f"-{2**31}", str(2**64), "9" * 40, "0x10", "1e3", "5, 5", "+5", "5 5", ""):
        yield FalseSize(f"a length of {text!r}", _post(f"Content-Length: {text}", token=token), (_NOT_HTTP,))
    for pair in (("5", "6"), ("5", str(2**31))):
        lengths = [f"Content-Length: {text}" for text in pair]
        yield FalseSize(f"the lengths {pair}", _post(*lengths, token=token) + b"{}", (_NOT_HTTP,))
    both = _post("Content-Length: 5", "Transfer-Encoding: chunked", token=token)
    yield FalseSize("a length and chunks", both + b"2\r\n{}\r\n0\r\n\r\n", (_NOT_HTTP,))


def _chunk_lies(rng: random.Random, token: str) -> Iterator[FalseSize]:
    chunked = _post("Transfer-Encoding: chunked", token=token)
    for size in ("7fffffff", "80000000", "ffffffff", "7fffffffffffffff", "100001"):
        sent = chunked + f"{size}\r\n".encode() + rng.randbytes(rng.randint(0, 2_000))
        yield FalseSize(f"a chunk of {size}", sent, ("408", CLOSED), waits=True)
    for size in ("-1", "10000000000000000", "f" * 40, "xyz", "+5", " 5", "0x5"):
        yield FalseSize(f"a chunk of {size!r}", chunked + f"{size}\r\n{{}}".encode(), (_NOT_HTTP,))
    one_by_one = b"1\r\n{\r\n" * (BODY_MAX + 1)
    yield FalseSize(
        "chunks of one byte, more than a body may have", chunked + one_by_one, (_TOO_LARGE, CLOSED)
    )
    extended = b"1;" + b"x" * (2 << 20) + b"\r\n{\r\n"
    yield FalseSize("a chunk with an extension of 2 MiB", chunked + extended, (_NOT_HTTP, _HEAD, CLOSED))
    trailers = b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 20_000
    yield FalseSize("20,000 trailers", chunked + trailers, (_HEAD, CLOSED))


def _head_lies(token: str) -> Iterator[FalseSize]:
    line = "GET /healthz HTTP/1.1"
    floods = {
        "a header of 1 MiB": _head(line, "X: " + "x" * (1 << 20), token=token),
        "a header without an end": _head(line, token=token)[:-4] + b"\r\nX: " + b"x" * (1 << 20),
        "a header name of 1 MiB": _head(line, "x" * (1 << 20) + ": y", token=token),
        "20,000 headers": _head(line, *["X: y"] * 20_000, token=token),
        "100,000 cookies": _head(line, "Cookie: " + "a=b; " * 100_000, token=token),
        "an address of 1 MiB": _head("GET /" + "x" * (1 << 20) + " HTTP/1.1", token=token),
        "a query of 1 MiB": _head("GET /v1/views?" + "x=y&" * (1 << 18) + " HTTP/1.1", token=token),
        "a head just past the limit": _head(line, "X: " + "x" * _HEAD_MAX, token=token),
    }
    for name, sent in floods.items():
        # If the server closes with unread data, the kernel might discard the response.
        yield FalseSize(name, sent, (_HEAD, CLOSED))
    yield FalseSize("a method of 1 MiB", b"G" * (1 << 20) + b" / HTTP/1.1\r\n\r\n", (_NOT_HTTP, CLOSED))


def _pipelining_lies(token: str) -> Iterator[FalseSize]:
    """Small pipelined requests, each of which would become an object of kilobytes."""
    request, last = _head("GET /healthz HTTP/1.1"), _head("GET /healthz HTTP/1.1", "Connection: close")
    yield FalseSize("20,000 requests at once", request * 20_000 + last, ("200", CLOSED))
    rows = _head(f"GET /v1/views/{VIEW}/rows/k1 HTTP/1.1", token=token)
    yield FalseSize("1,000 queries at once", rows * 1_000 + last, ("200", CLOSED))


def _compressed_lies(token: str) -> Iterator[FalseSize]:
    zeros = bytes(64 << 20)
    bomb = zlib.compress(zeros, 1)
    for name, compressed in (
        ("gzip", gzip.compress(zeros, 1)),
        ("deflate", bomb),
        ("br", bomb),
        ("zstd", bomb),
    ):
        sent = _post(
            f"Content-Encoding: {name}",
            f"Content-Length: {len(compressed)}",
            "Connection: close",
            token=token,
        )
        yield FalseSize(f"{name} of 64 MiB", sent + compressed, (_MEDIA,))
    for coding in ("gzip", "gzip, chunked", "chunked, gzip", "identity"):
        sent = _post(f"Transfer-Encoding: {coding}", token=token) + bomb
        yield FalseSize(f"a transfer coding of {coding!r}", sent, (_NOT_HTTP, "501", "415"))


# WebSockets


def _upgrade(token: str, *headers: str) -> bytes:
    return _head(
        f"GET /v1/views/{VIEW}/changes HTTP/1.1",
        *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", *headers),
        token=token,
    )


def _frame(first: int, length: int, payload: bytes = b"", *, masked: bool = True) -> bytes:
    """Encode a frame. ``length`` is the claimed length, written in 8 bytes if it is above 65,535 or negative."""
    flag = 0x80 if masked else 0
    if 0 <= length <= 125:
        head = bytes([first, flag | length])
    elif 0 <= length <= 65_535:
        head = bytes([first, flag | 126]) + struct.pack(">H", length)
    else:
        head = bytes([first, flag | 127]) + struct.pack(">Q", length % 2**64)
    return head + (bytes(4) if masked else b"") + payload


def socket_lies(rng: random.Random, reader: str) -> Iterator[FalseSize]:
    """``reader`` is a token that may follow the view. Most cases also run without a token in the handshake, because the
    first message of a WebSocket can contain it.
    """
    for token in (reader, ""):
        who = "with a token" if token else "before the login"
        lie = functools.partial(FalseSize, greeting=_upgrade(token))
        for length in (2**31, 2**32, 2**62, 2**63 - 1, _MESSAGE_MAX + 1):
            for first, kind in ((0x81, "text"), (0x82, "bytes"), (0x01, "a fragment")):
                sent = _frame(first, length, bytes(rng.randint(0, 2_000)))
                yield lie(f"a frame of {kind} of {length}, {who}", sent, ("1009",))
        for length in (-1, -(2**63)):
            sent = _frame(0x81, length, bytes(100))
            yield lie(f"a frame of {length}, {who}", sent, ("1002", "1009"))
        sent = _frame(0x81, _MESSAGE_MAX, bytes(rng.randint(1, 2_000)))
        yield lie(f"a frame of 64 KiB of which few bytes are sent, {who}", sent, ("4408", CLOSED), waits=True)
        for first, kind in ((0x88, "close"), (0x89, "ping"), (0x8A, "pong")):
            sent = _frame(first, 126, bytes(126))
            yield lie(f"a {kind} of 126 bytes, {who}", sent, ("1002",))
        fragments = _frame(0x01, 1_000, bytes(1_000)) + _frame(0x00, 1_000, bytes(1_000)) * 70
        yield lie(f"a message of 71 fragments of 1,000 bytes, {who}", fragments, ("1009",))
        empty = _frame(0x01, 0) + _frame(0x00, 0) * 100_000
        yield lie(f"100,000 empty fragments, {who}", empty, ("1002", "1009", "4408", CLOSED), waits=True)
        pings = _frame(0x89, 125, bytes(125)) * 20_000
        yield lie(f"20,000 pings, {who}", pings, ("1002", "1008", "4408", CLOSED), waits=True)
        yield lie(f"a frame without a mask, {who}", _frame(0x81, 10, bytes(10), masked=False), ("1002",))
    compressed = zlib.compress(bytes(16 << 20), 9)[2:-4][: _MESSAGE_MAX - 100]
    upgrade_with_deflate = _upgrade(
        reader, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    )
    yield FalseSize(
        "a compressed message",
        _frame(0xC1, len(compressed), compressed),
        ("1002",),
        greeting=upgrade_with_deflate,
    )


def http_code(answer: bytes) -> str:
    """Return the status of a response, the close code after a WebSocket handshake, or CLOSED."""
    if answer.startswith(_UPGRADED):
        return _close_code(answer.partition(b"\r\n\r\n")[2])
    return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else CLOSED


def _close_code(frames: bytes) -> str:
    at = 0
    while at + 2 <= len(frames):
        first, length = frames[at], frames[at + 1]
        at += 2
        if length >= 126:
            width = 2 if length == 126 else 8
            length = int.from_bytes(frames[at : at + width], "big")
            at += width
        if first & 0x0F == 0x8:
            return str(int.from_bytes(frames[at : at + 2], "big"))
        at += length
    return CLOSED
