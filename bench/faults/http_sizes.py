"""Lies about sizes over HTTP: of bodies, chunks, heads and frames of WebSockets, with and without a token."""

from __future__ import annotations

import functools
import gzip
import random
import struct
import zlib
from collections.abc import Iterator

from bench.faults.served_shop import INPUT, VIEW
from bench.faults.size_lies import CLOSED, SizeLie

__all__ = ["BODY_MAX", "http_code", "http_lies", "socket_lies"]

BODY_MAX = 128 << 10
"""What the server under attack is set to, also for messages of PostgreSQL's protocol."""
_HEAD_MAX = 32 << 10
_MESSAGE_MAX = 64 << 10
_UPGRADED = b"HTTP/1.1 101 "
_TOO_LARGE, _HEAD, _NOT_HTTP, _NO_TOKEN, _MEDIA = "413", "431", "400", "401", "415"


def _head(line: str, *headers: str, token: str = "") -> bytes:
    named = [line, "Host: 127.0.0.1", *headers]
    if token:
        named.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*named, "", ""]).encode("latin-1")


def _post(*headers: str, token: str) -> bytes:
    return _head(
        f"POST /v1/topics/{INPUT}/records HTTP/1.1", "Content-Type: application/json", *headers, token=token
    )


def http_lies(rng: random.Random, writer: str) -> Iterator[SizeLie]:
    """``writer`` is a token that may write records; every lie is also told without it."""
    for token in (writer, ""):
        who = "with a token" if token else "before the login"
        yield from _body_lies(rng, token, who)
    yield from _length_lies(writer)
    yield from _chunk_lies(rng, writer)
    yield from _head_lies(writer)
    yield from _packed_lies(writer)
    yield from _ahead_lies(writer)


def _body_lies(rng: random.Random, token: str, who: str) -> Iterator[SizeLie]:
    expected = (_TOO_LARGE if token else _NO_TOKEN,)
    for size in (2**31 - 1, 2**31, 2**32, 2**63 - 1, BODY_MAX + 1):
        sent = _post(f"Content-Length: {size}", token=token) + rng.randbytes(rng.randint(0, 2_000))
        yield SizeLie(f"a body of {size}, {who}", sent, expected)
    sent = _post(f"Content-Length: {BODY_MAX}", token=token) + bytes(rng.randint(1, 50_000))
    yield SizeLie(
        f"a body of which little comes, {who}",
        sent,
        ("408", CLOSED) if token else expected,
        token != "",
    )
    sent = _head("GET /healthz HTTP/1.1", f"Content-Length: {2**31}", token=token) + bytes(100)
    yield SizeLie(f"a body of 2 GiB for a route without one, {who}", sent, ("200",), waits=True)


def _length_lies(token: str) -> Iterator[SizeLie]:
    for text in ("-1", f"-{2**31}", str(2**64), "9" * 40, "0x10", "1e3", "5, 5", "+5", "5 5", ""):
        yield SizeLie(f"a length of {text!r}", _post(f"Content-Length: {text}", token=token), (_NOT_HTTP,))
    for two in (("5", "6"), ("5", str(2**31))):
        lengths = [f"Content-Length: {text}" for text in two]
        yield SizeLie(f"the lengths {two}", _post(*lengths, token=token) + b"{}", (_NOT_HTTP,))
    both = _post("Content-Length: 5", "Transfer-Encoding: chunked", token=token)
    yield SizeLie("a length and chunks", both + b"2\r\n{}\r\n0\r\n\r\n", (_NOT_HTTP,))


def _chunk_lies(rng: random.Random, token: str) -> Iterator[SizeLie]:
    chunked = _post("Transfer-Encoding: chunked", token=token)
    for size in ("7fffffff", "80000000", "ffffffff", "7fffffffffffffff", "100001"):
        sent = chunked + f"{size}\r\n".encode() + rng.randbytes(rng.randint(0, 2_000))
        yield SizeLie(f"a chunk of {size}", sent, ("408", CLOSED), waits=True)
    for size in ("-1", "10000000000000000", "f" * 40, "xyz", "+5", " 5", "0x5"):
        yield SizeLie(f"a chunk of {size!r}", chunked + f"{size}\r\n{{}}".encode(), (_NOT_HTTP,))
    one_by_one = b"1\r\n{\r\n" * (BODY_MAX + 1)
    yield SizeLie("chunks of a byte, more than a body may have", chunked + one_by_one, (_TOO_LARGE, CLOSED))
    named = b"1;" + b"x" * (2 << 20) + b"\r\n{\r\n"
    yield SizeLie("a chunk with an extension of 2 MiB", chunked + named, (_NOT_HTTP, _HEAD, CLOSED))
    trailers = b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 20_000
    yield SizeLie("20,000 trailers", chunked + trailers, (_HEAD, CLOSED))


def _head_lies(token: str) -> Iterator[SizeLie]:
    line = "GET /healthz HTTP/1.1"
    floods = {
        "a header of 1 MiB": _head(line, "X: " + "x" * (1 << 20), token=token),
        "a header without an end": _head(line, token=token)[:-4] + b"\r\nX: " + b"x" * (1 << 20),
        "a name of a header of 1 MiB": _head(line, "x" * (1 << 20) + ": y", token=token),
        "20,000 headers": _head(line, *["X: y"] * 20_000, token=token),
        "100,000 cookies": _head(line, "Cookie: " + "a=b; " * 100_000, token=token),
        "an address of 1 MiB": _head("GET /" + "x" * (1 << 20) + " HTTP/1.1", token=token),
        "a query of 1 MiB": _head("GET /v1/views?" + "x=y&" * (1 << 18) + " HTTP/1.1", token=token),
        "a head just past the limit": _head(line, "X: " + "x" * _HEAD_MAX, token=token),
    }
    for name, sent in floods.items():
        # What is still on its way when it closes may have the kernel throw the answer away.
        yield SizeLie(name, sent, (_HEAD, CLOSED))
    yield SizeLie("a method of 1 MiB", b"G" * (1 << 20) + b" / HTTP/1.1\r\n\r\n", (_NOT_HTTP, CLOSED))


def _ahead_lies(token: str) -> Iterator[SizeLie]:
    """Requests sent ahead, which are small and would each become an object of kilobytes."""
    one, last = _head("GET /healthz HTTP/1.1"), _head("GET /healthz HTTP/1.1", "Connection: close")
    yield SizeLie("20,000 requests at once", one * 20_000 + last, ("200", CLOSED))
    rows = _head(f"GET /v1/views/{VIEW}/rows/k1 HTTP/1.1", token=token)
    yield SizeLie("1,000 questions at once", rows * 1_000 + last, ("200", CLOSED))


def _packed_lies(token: str) -> Iterator[SizeLie]:
    zeros = bytes(64 << 20)
    bomb = zlib.compress(zeros, 1)
    for name, packed in (
        ("gzip", gzip.compress(zeros, 1)),
        ("deflate", bomb),
        ("br", bomb),
        ("zstd", bomb),
    ):
        sent = _post(
            f"Content-Encoding: {name}", f"Content-Length: {len(packed)}", "Connection: close", token=token
        )
        yield SizeLie(f"{name} of 64 MiB", sent + packed, (_MEDIA,))
    for coding in ("gzip", "gzip, chunked", "chunked, gzip", "identity"):
        sent = _post(f"Transfer-Encoding: {coding}", token=token) + bomb
        yield SizeLie(f"a transfer coding of {coding!r}", sent, (_NOT_HTTP, "501", "415"))


# WebSockets


def _upgrade(token: str, *headers: str) -> bytes:
    return _head(
        f"GET /v1/views/{VIEW}/changes HTTP/1.1",
        *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", *headers),
        token=token,
    )


def _frame(first: int, length: int, payload: bytes = b"", *, masked: bool = True) -> bytes:
    """``length`` is what the frame claims, in 8 bytes if it is above 65,535 or negative."""
    flag = 0x80 if masked else 0
    if 0 <= length <= 125:
        head = bytes([first, flag | length])
    elif 0 <= length <= 65_535:
        head = bytes([first, flag | 126]) + struct.pack(">H", length)
    else:
        head = bytes([first, flag | 127]) + struct.pack(">Q", length % 2**64)
    return head + (bytes(4) if masked else b"") + payload


def socket_lies(rng: random.Random, reader: str) -> Iterator[SizeLie]:
    """``reader`` is a token that may follow the view; the first message of a WebSocket may bring it too."""
    for token in (reader, ""):
        who = "with a token" if token else "before the login"
        lie = functools.partial(SizeLie, greeting=_upgrade(token))
        for length in (2**31, 2**32, 2**62, 2**63 - 1, _MESSAGE_MAX + 1):
            for first, kind in ((0x81, "text"), (0x82, "bytes"), (0x01, "a fragment")):
                sent = _frame(first, length, bytes(rng.randint(0, 2_000)))
                yield lie(f"a frame of {kind} of {length}, {who}", sent, ("1009",))
        for length in (-1, -(2**63)):
            sent = _frame(0x81, length, bytes(100))
            yield lie(f"a frame of {length}, {who}", sent, ("1002", "1009"))
        sent = _frame(0x81, _MESSAGE_MAX, bytes(rng.randint(1, 2_000)))
        yield lie(f"a frame of 64 KiB of which little comes, {who}", sent, ("4408", CLOSED), waits=True)
        for first, kind in ((0x88, "close"), (0x89, "ping"), (0x8A, "pong")):
            sent = _frame(first, 126, bytes(126))
            yield lie(f"a {kind} of 126 bytes, {who}", sent, ("1002",))
        pieces = _frame(0x01, 1_000, bytes(1_000)) + _frame(0x00, 1_000, bytes(1_000)) * 70
        yield lie(f"a message of 71 fragments of 1,000 bytes, {who}", pieces, ("1009",))
        empty = _frame(0x01, 0) + _frame(0x00, 0) * 100_000
        yield lie(f"100,000 empty fragments, {who}", empty, ("1002", "1009", "4408", CLOSED), waits=True)
        pings = _frame(0x89, 125, bytes(125)) * 20_000
        yield lie(f"20,000 pings, {who}", pings, ("1002", "1008", "4408", CLOSED), waits=True)
        yield lie(f"a frame without a mask, {who}", _frame(0x81, 10, bytes(10), masked=False), ("1002",))
    packed = zlib.compress(bytes(16 << 20), 9)[2:-4][: _MESSAGE_MAX - 100]
    offered = _upgrade(reader, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
    yield SizeLie("a compressed message", _frame(0xC1, len(packed), packed), ("1002",), greeting=offered)


def http_code(answer: bytes) -> str:
    """The status of an answer; behind the handshake of a WebSocket, the code of its close frame; or CLOSED."""
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
