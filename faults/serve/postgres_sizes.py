"""False sizes in PostgreSQL's protocol: of the first message, of every later message, and inside the messages."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from faults.serve.http_sizes import BODY_MAX, CLOSED, FalseSize

__all__ = ["message", "postgres_code", "postgres_lies", "startup"]

_PROTOCOL = 196_608
_SSL, _GSS, _CANCEL = 80_877_103, 80_877_104, 80_877_102
_STARTUP_MAX = 10_000
_MESSAGE_TYPES = b"PBDECSHQXFdcfp"
_INVALID_SIZES = (2**31 - 1, -1, -(2**31), 0, 3)
_PROTOCOL_VIOLATION = "08P01"
_INT8_ARRAY, _TEXT_ARRAY = 1016, 1009


def message(letter: bytes, body: bytes) -> bytes:
    return letter + struct.pack(">i", len(body) + 4) + body


def startup(user: str = "liar", **names: str) -> bytes:
    parameters = b"".join(f"{name}\0{value}\0".encode() for name, value in {"user": user, **names}.items())
    body = struct.pack(">i", _PROTOCOL) + parameters + b"\0"
    return struct.pack(">i", len(body) + 4) + body


def postgres_lies(rng: random.Random, reader: str) -> Iterator[FalseSize]:
    yield from _first_lies(rng)
    authenticated = startup()
    for size in (*_INVALID_SIZES, 1_001, BODY_MAX):
        sent = authenticated + b"p" + struct.pack(">i", size) + rng.randbytes(rng.randint(0, 900))
        yield FalseSize(f"a password of {size}", sent, (_PROTOCOL_VIOLATION,))
    incomplete = authenticated + b"p" + struct.pack(">i", 1_000) + b"x"
    yield FalseSize("a password of which few bytes are sent", incomplete, (CLOSED,), waits=True)
    logged_in = startup() + message(b"p", reader.encode() + b"\0")
    for lie in _later_lies(rng):
        yield FalseSize(lie.name, logged_in + lie.raw, lie.expected, lie.waits)


def _first_lies(rng: random.Random) -> Iterator[FalseSize]:
    for size in (*_INVALID_SIZES, 4, 7, _STARTUP_MAX + 1):
        for code in (_PROTOCOL, _SSL, _GSS, _CANCEL):
            sent = struct.pack(">ii", size, code) + rng.randbytes(rng.randint(0, 500))
            yield FalseSize(f"a first message of {size} with code {code}", sent, (_PROTOCOL_VIOLATION,))
    sent = struct.pack(">ii", _STARTUP_MAX, _PROTOCOL) + b"user\0x\0"
    yield FalseSize("a first message of which few bytes are sent", sent, (CLOSED,), waits=True)
    body = struct.pack(">i", _PROTOCOL) + b"a\0b\0" * 2_400 + b"\0"
    sent = struct.pack(">i", len(body) + 4) + body + message(b"p", b"none\0")
    yield FalseSize("2,400 names in the first message", sent, ("28P01",))


def _later_lies(rng: random.Random) -> Iterator[FalseSize]:
    for letter in _MESSAGE_TYPES:
        for size in (*_INVALID_SIZES, BODY_MAX + 1):
            sent = bytes([letter]) + struct.pack(">i", size) + rng.randbytes(rng.randint(0, 500))
            yield FalseSize(f"a message {chr(letter)} of {size}", sent, (_PROTOCOL_VIOLATION,))
    sent = b"Q" + struct.pack(">i", BODY_MAX) + bytes(rng.randint(1, 50_000))
    yield FalseSize("a statement of which few bytes are sent", sent, (CLOSED,), waits=True)
    for count in (2**15 - 1, -1, -(2**15)):
        counted = struct.pack(">h", count)
        bodies = {
            "parameter types": message(b"P", b"\0SELECT 1\0" + counted),
            "parameter formats": message(b"B", b"\0\0" + counted),
            "parameters": message(b"B", b"\0\0" + struct.pack(">h", 0) + counted),
            "result formats": message(b"B", b"\0\0" + struct.pack(">hh", 0, 0) + counted),
        }
        for what, sent in bodies.items():
            yield FalseSize(f"{count} {what}", sent, (_PROTOCOL_VIOLATION,))
    for size in (2**31 - 1, -2, -(2**31), 100):
        sent = message(b"B", b"\0\0" + struct.pack(">hhi", 0, 1, size) + b"x" * 50)
        yield FalseSize(f"a parameter of {size}", sent, (_PROTOCOL_VIOLATION,))
    for text in (message(b"Q", b"SELECT 1"), message(b"P", b"name"), message(b"D", b"S"), message(b"C", b"")):
        yield FalseSize(f"a text without a terminator in {text[:1]!r}", text, (_PROTOCOL_VIOLATION,))
    yield from _array_lies()
    # This message is complete. Each parameter would become a Python object.
    bind = message(b"B", b"\0\0" + struct.pack(">hh", 0, 32_000) + struct.pack(">i", 0) * 32_000 + b"\0\0")
    yield _with_sync_and_terminate("32,000 empty parameters of an unknown statement", bind, ("26000",))


def _array_lies() -> Iterator[FalseSize]:
    """False dimensions and lengths inside a parameter. The statement must fail, and the connection must continue."""
    parse = message(b"P", b"\0SELECT $1\0" + struct.pack(">hi", 1, _INT8_ARRAY))
    for dimensions, count in ((1, 2**31 - 1), (1, -1), (1, 2**20), (2**31 - 1, 1), (-1, 1), (7, 2**20)):
        array = struct.pack(">iiiii", dimensions, 0, 20, count, 1)
        bind = message(b"B", b"\0\0" + struct.pack(">hhhi", 1, 1, 1, len(array)) + array + b"\0\0")
        yield _with_sync_and_terminate(
            f"an array of {dimensions} dimensions of {count}", parse + bind, ("42601", "0A000", "54000")
        )
    array = struct.pack(">iiiiii", 1, 0, 20, 1, 1, 2**31 - 1)
    bind = message(b"B", b"\0\0" + struct.pack(">hhhi", 1, 1, 1, len(array)) + array + b"\0\0")
    yield _with_sync_and_terminate(
        "an array with an element of 2 GiB", parse + bind, ("42601", "0A000", "54000")
    )
    text = b"{" + b"{" * 60_000 + b"}"
    parse = message(b"P", b"\0SELECT $1\0" + struct.pack(">hi", 1, _TEXT_ARRAY))
    bind = message(b"B", b"\0\0" + struct.pack(">hhi", 0, 1, len(text)) + text + b"\0\0")
    yield _with_sync_and_terminate("an array of 60,000 brackets", parse + bind, ("42601", "0A000", "54000"))


def _with_sync_and_terminate(name: str, sent: bytes, states: tuple[str, ...]) -> FalseSize:
    """Append Sync and Terminate, so that the server responds and closes the connection."""
    return FalseSize(name, sent + message(b"S", b"") + message(b"X", b""), states)


def postgres_code(answer: bytes) -> str:
    """Return the SQLSTATE of the last error in a response, or CLOSED."""
    state, at = CLOSED, 0
    while at + 5 <= len(answer):
        letter, size = answer[at : at + 1], int.from_bytes(answer[at + 1 : at + 5], "big")
        if letter == b"N" and size > 1 << 20:
            # The refusal of encryption is a single letter.
            at += 1
            continue
        if letter == b"E":
            fields = answer[at + 5 : at + 1 + size].split(b"\0")
            state = next((field[1:].decode("latin-1") for field in fields if field[:1] == b"C"), "E")
        at += 1 + size
    return state
