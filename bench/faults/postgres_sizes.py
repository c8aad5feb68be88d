"""Lies about sizes in PostgreSQL's protocol: of the first message, of every later one, and of what is in them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from bench.faults.http_sizes import BODY_MAX
from bench.faults.size_lies import CLOSED, SizeLie

__all__ = ["message", "postgres_code", "postgres_lies", "startup"]

_PROTOCOL = 196_608
_SSL, _GSS, _CANCEL = 80_877_103, 80_877_104, 80_877_102
_STARTUP_MAX = 10_000
_LETTERS = b"PBDECSHQXFdcfp"
_HUGE = (2**31 - 1, -1, -(2**31), 0, 3)
_NO_MESSAGE = "08P01"
_INT8_ARRAY, _TEXT_ARRAY = 1016, 1009


def message(letter: bytes, body: bytes) -> bytes:
    return letter + struct.pack(">i", len(body) + 4) + body


def startup(user: str = "liar", **names: str) -> bytes:
    told = b"".join(f"{name}\0{value}\0".encode() for name, value in {"user": user, **names}.items())
    body = struct.pack(">i", _PROTOCOL) + told + b"\0"
    return struct.pack(">i", len(body) + 4) + body


def postgres_lies(rng: random.Random, reader: str) -> Iterator[SizeLie]:
    yield from _first_lies(rng)
    asked_for_password = startup()
    for size in (*_HUGE, 1_001, BODY_MAX):
        sent = asked_for_password + b"p" + struct.pack(">i", size) + rng.randbytes(rng.randint(0, 900))
        yield SizeLie(f"a password of {size}", sent, (_NO_MESSAGE,))
    little = asked_for_password + b"p" + struct.pack(">i", 1_000) + b"x"
    yield SizeLie("a password of which little comes", little, (CLOSED,), waits=True)
    logged_in = startup() + message(b"p", reader.encode() + b"\0")
    for lie in _later_lies(rng):
        yield SizeLie(lie.name, logged_in + lie.raw, lie.expected, lie.waits)


def _first_lies(rng: random.Random) -> Iterator[SizeLie]:
    for size in (*_HUGE, 4, 7, _STARTUP_MAX + 1):
        for code in (_PROTOCOL, _SSL, _GSS, _CANCEL):
            sent = struct.pack(">ii", size, code) + rng.randbytes(rng.randint(0, 500))
            yield SizeLie(f"a first message of {size} with code {code}", sent, (_NO_MESSAGE,))
    sent = struct.pack(">ii", _STARTUP_MAX, _PROTOCOL) + b"user\0x\0"
    yield SizeLie("a first message of which little comes", sent, (CLOSED,), waits=True)
    body = struct.pack(">i", _PROTOCOL) + b"a\0b\0" * 2_400 + b"\0"
    sent = struct.pack(">i", len(body) + 4) + body + message(b"p", b"none\0")
    yield SizeLie("2,400 names in the first message", sent, ("28P01",))


def _later_lies(rng: random.Random) -> Iterator[SizeLie]:
    for letter in _LETTERS:
        for size in (*_HUGE, BODY_MAX + 1):
            sent = bytes([letter]) + struct.pack(">i", size) + rng.randbytes(rng.randint(0, 500))
            yield SizeLie(f"a message {chr(letter)} of {size}", sent, (_NO_MESSAGE,))
    sent = b"Q" + struct.pack(">i", BODY_MAX) + bytes(rng.randint(1, 50_000))
    yield SizeLie("a statement of which little comes", sent, (CLOSED,), waits=True)
    for count in (2**15 - 1, -1, -(2**15)):
        counted = struct.pack(">h", count)
        bodies = {
            "types": message(b"P", b"\0SELECT 1\0" + counted),
            "forms": message(b"B", b"\0\0" + counted),
            "parameters": message(b"B", b"\0\0" + struct.pack(">h", 0) + counted),
            "forms of results": message(b"B", b"\0\0" + struct.pack(">hh", 0, 0) + counted),
        }
        for what, sent in bodies.items():
            yield SizeLie(f"{count} {what}", sent, (_NO_MESSAGE,))
    for size in (2**31 - 1, -2, -(2**31), 100):
        sent = message(b"B", b"\0\0" + struct.pack(">hhi", 0, 1, size) + b"x" * 50)
        yield SizeLie(f"a parameter of {size}", sent, (_NO_MESSAGE,))
    for text in (message(b"Q", b"SELECT 1"), message(b"P", b"name"), message(b"D", b"S"), message(b"C", b"")):
        yield SizeLie(f"a text without an end in {text[:1]!r}", text, (_NO_MESSAGE,))
    yield from _array_lies()
    # Real bytes, each of which would become a parameter of its own.
    many = message(b"B", b"\0\0" + struct.pack(">hh", 0, 32_000) + struct.pack(">i", 0) * 32_000 + b"\0\0")
    yield _answered("32,000 empty parameters of no statement", many, ("26000",))


def _array_lies() -> Iterator[SizeLie]:
    """Dimensions and lengths inside of one parameter: an error of the statement, and the connection goes on."""
    parse = message(b"P", b"\0SELECT $1\0" + struct.pack(">hi", 1, _INT8_ARRAY))
    for dimensions, count in ((1, 2**31 - 1), (1, -1), (1, 2**20), (2**31 - 1, 1), (-1, 1), (7, 2**20)):
        array = struct.pack(">iiiii", dimensions, 0, 20, count, 1)
        bind = message(b"B", b"\0\0" + struct.pack(">hhhi", 1, 1, 1, len(array)) + array + b"\0\0")
        yield _answered(
            f"an array of {dimensions} dimensions of {count}", parse + bind, ("42601", "0A000", "54000")
        )
    array = struct.pack(">iiiiii", 1, 0, 20, 1, 1, 2**31 - 1)
    bind = message(b"B", b"\0\0" + struct.pack(">hhhi", 1, 1, 1, len(array)) + array + b"\0\0")
    yield _answered("an array with an element of 2 GiB", parse + bind, ("42601", "0A000", "54000"))
    text = b"{" + b"{" * 60_000 + b"}"
    parse = message(b"P", b"\0SELECT $1\0" + struct.pack(">hi", 1, _TEXT_ARRAY))
    bind = message(b"B", b"\0\0" + struct.pack(">hhi", 0, 1, len(text)) + text + b"\0\0")
    yield _answered("an array of 60,000 brackets", parse + bind, ("42601", "0A000", "54000"))


def _answered(name: str, sent: bytes, states: tuple[str, ...]) -> SizeLie:
    """Followed by what ends the connection as clients do."""
    return SizeLie(name, sent + message(b"S", b"") + message(b"X", b""), states)


def postgres_code(answer: bytes) -> str:
    """The state of the last error among the messages of an answer, or CLOSED."""
    state, at = CLOSED, 0
    while at + 5 <= len(answer):
        letter, size = answer[at : at + 1], int.from_bytes(answer[at + 1 : at + 5], "big")
        if letter == b"N" and size > 1 << 20:
            # The refusal of encryption is a letter alone.
            at += 1
            continue
        if letter == b"E":
            fields = answer[at + 5 : at + 1 + size].split(b"\0")
            state = next((field[1:].decode("latin-1") for field in fields if field[:1] == b"C"), "E")
        at += 1 + size
    return state
