"""X20, malformed requests to the server of views: HTTP, WebSockets and PostgreSQL's protocol, from real traffic bent.

Two stages, each beside a good client:

    nothing may change     whoever sends may read everything and write nothing. The log's data directory and the store
                           are the same afterwards, by their hashes
    anything may be meant  whoever sends may write one topic. The store and all other topics are the same

To each the server answers as its protocol says, with a status and a code that blame the request and not the server, or
hangs up. It foresees all of them and goes on serving.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bench.faults import calls
from bench.faults.connection import Connection
from bench.faults.mutation import mutated
from bench.faults.outcome import Outcome
from bench.faults.postgres_sizes import message
from bench.faults.served_bystander import ServedBystander
from bench.faults.served_shop import INPUT, ServedShop
from bench.faults.served_traffic import recorded_sessions, requests, subscription, upgrade
from bench.faults.workplace import workplace

__all__ = ["CASES", "RUNS", "UNPROTECTED", "run"]

FAULT = "X20"
UNPROTECTED = {
    "message-check": r"did not foresee",
    "parameter-check": r"was answered with 500",
    "first-message": r"did not foresee",
}
CASES = 500
RUNS = 20

_AT_ONCE = 40
_ENDED_S_MAX = 30.0
_SETTINGS = {"receive_ms": 700, "sql_ms": 2_000}
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_STATE = re.compile(r"[0-9A-Z]{5}")
_INTERNAL = "XX000"
# The server is busy, late, or lacks an extra: that is no fault of the request, and no harm either.
_OTHERS_FAULT = (501, 503, 504)
_AFTER_WEBSOCKET_S = 0.2

Sent = tuple[str, int, bytes, bytes]
"""Its kind, the port, what is sent first and answered, and what is sent then."""


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "message-check",
    cases: int = CASES,
    selects: bool = True,
) -> Outcome:
    """``selects``: with statements of SQL, which take processes of their own."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed, cases=cases)
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        ServedShop(home, _SETTINGS, without="" if protected else without) as shop,
    ):
        bystander = ServedBystander(shop, selects=selects)
        bystander.prepare()
        sessions = recorded_sessions(shop, selects=selects)
        bystander.start()
        for changes, count in ((False, cases // 2), (True, cases - cases // 2)):
            token = shop.writer if changes else shop.reader
            bent = _bent(rng, shop, requests(token, changes=changes or not protected), sessions, token)
            before = _kept_hash(shop, changes=changes)
            for piece in _pieces([next(bent) for _ in range(count)]):
                outcome.hits += len(piece)
                outcome.problems += _problems(piece)
            if _kept_hash(shop, changes=changes) != before:
                outcome.problems.append(f"files have changed that nobody may write (changes: {changes})")
        outcome.problems += bystander.finish()
        outcome.problems += shop.faults()
        if not shop.server.runs:
            outcome.problems.append("the server ended by itself")
        outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
        outcome.peak_rss_mb = shop.server.rss_mb("VmHWM")
    return outcome


def _bent(
    rng: random.Random, shop: ServedShop, whole: Sequence[bytes], sessions: Sequence[bytes], token: str
) -> Iterator[Sent]:
    """Every route has its turn; what tells who it is often stays as it is, so that more than the login is met."""
    number = rng.randrange(len(whole))
    while True:
        kind = rng.random()
        if kind < 0.5:
            request = whole[number % len(whole)]
            number += 1
            yield "a request", shop.server.port, b"", _spared(rng, request, token.encode())
        elif kind < 0.6:
            yield "a handshake", shop.server.port, b"", mutated(rng, upgrade(token))
        elif kind < 0.75:
            yield "a frame", shop.server.port, upgrade(token), mutated(rng, subscription())
        else:
            session = _spared(rng, rng.choice(sessions), shop.reader.encode())
            yield "a message", shop.pg_port, b"", session + message(b"S", b"") + message(b"X", b"")


def _spared(rng: random.Random, raw: bytes, token: bytes) -> bytes:
    before, found, after = raw.partition(token)
    if not found or rng.random() < 0.1:
        return mutated(rng, raw)
    if rng.random() < 0.4:
        return mutated(rng, before) + found + after
    return before + found + mutated(rng, after)


# What comes of it


def _pieces(sent: Sequence[Sent]) -> Iterable[Sequence[Sent]]:
    return (sent[at : at + _AT_ONCE] for at in range(0, len(sent), _AT_ONCE))


def _problems(piece: Sequence[Sent]) -> Iterator[str]:
    """Side by side, since some are answered only at the deadline for receiving them."""
    with contextlib.ExitStack() as stack:
        begun: list[tuple[Sent, socket.socket, bytearray]] = []
        for one in piece:
            _, port, greeting, raw = one
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            with contextlib.suppress(OSError):
                if greeting:
                    connection.sendall(greeting)
                    connection.recv(65_536)
                connection.sendall(raw)
            begun.append((one, connection, bytearray()))
        still_open = _read_all(begun)
        for (kind, _, _, raw), connection, answer in begun:
            if connection.fileno() in still_open:
                yield f"{kind} was neither answered nor closed: {raw[:300]!r}"
            elif problem := _JUDGES[kind](bytes(answer), raw):
                yield f"{kind} was answered with {problem}: {raw[:300]!r}"


def _read_all(begun: Sequence[tuple[Sent, socket.socket, bytearray]]) -> set[int]:
    """Until each is answered or has ended; returns the descriptors of the others."""
    deadline = time.monotonic() + _ENDED_S_MAX
    with selectors.DefaultSelector() as selector:
        for one, connection, answer in begun:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, (one[0], answer, time.monotonic()))
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.05):
                kind, answer, _ = key.data
                try:
                    piece = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                except OSError:
                    piece = b""
                answer += piece
                if not piece or (kind in ("a request", "a handshake") and _is_answered(answer)):
                    selector.unregister(key.fileobj)
            # A subscription that is still one goes on: there is nothing to wait for.
            for key in list(selector.get_map().values()):
                kind, _, since = key.data
                if kind == "a frame" and time.monotonic() - since > _AFTER_WEBSOCKET_S:
                    selector.unregister(key.fileobj)
        return {key.fd for key in selector.get_map().values()}


def _is_answered(answer: bytearray) -> bool:
    head, found, body = bytes(answer).partition(b"\r\n\r\n")
    if not found:
        return False
    length = _LENGTH.search(head + b"\r\n")
    return length is None or len(body) >= int(length[1])


def _judge_http(answer: bytes, raw: bytes) -> str:
    if not answer:
        return ""
    found = _STATUS.match(answer)
    if found is None:
        return f"{answer[:60]!r}"
    status = int(found[1])
    if status < 400:
        return ""
    if status >= 500 and status not in _OTHERS_FAULT:
        return str(status)
    head, _, body = answer.partition(b"\r\n\r\n")
    if raw[:4] == b"HEAD" or not body:
        return ""
    if b"application/problem+json" not in head:
        return "" if b"text/plain" in head and b"101" not in found[0] else f"{status} without a problem"
    try:
        told = json.loads(body)
    except ValueError:
        return f"{status} and a body that is not JSON"
    is_right = told.get("status") == status and str(told.get("code")).startswith("HR-")
    return "" if is_right else f"{status} and {told.get('status')} {told.get('code')}"


def _judge_frame(answer: bytes, raw: bytes) -> str:
    """Frames of the server are never masked, and no close frame says that the server has failed."""
    at = 0
    while at + 2 <= len(answer):
        first, length = answer[at], answer[at + 1]
        at += 2
        if first & 0x70 or length & 0x80:
            return f"a frame that begins with {first:02x}{length:02x}"
        if length >= 126:
            width = 2 if length == 126 else 8
            length = int.from_bytes(answer[at : at + width], "big")
            at += width
        if first & 0x0F == 0x8 and answer[at : at + 2] == (1011).to_bytes(2, "big"):
            return "close code 1011"
        at += length
    return ""


def _judge_postgres(answer: bytes, raw: bytes) -> str:
    at = 0
    while at < len(answer):
        if answer[at : at + 1] == b"N" and answer[at + 1 : at + 2] not in (b"\0",):
            at += 1
            continue
        size = int.from_bytes(answer[at + 1 : at + 5], "big")
        letter = answer[at : at + 1]
        if not letter.isalnum() or size < 4 or at + 1 + size > len(answer):
            return f"{answer[at : at + 20]!r}, which is no message"
        if letter == b"E":
            fields = answer[at + 5 : at + 1 + size].split(b"\0")
            states = [field[1:].decode("latin-1") for field in fields if field[:1] == b"C"]
            if len(states) != 1 or _STATE.fullmatch(states[0]) is None or states[0] == _INTERNAL:
                return f"state {states}"
        at += 1 + size
    return ""


_JUDGES: dict[str, Callable[[bytes, bytes], str]] = {
    "a request": _judge_http,
    "a handshake": _judge_http,
    "a frame": _judge_frame,
    "a message": _judge_postgres,
}


# What must not change


def _kept_hash(shop: ServedShop, *, changes: bool) -> str:
    """Of the store and of the log's data directory; where a topic may be written, of all other topics only."""
    data = shop.broker.data
    folders = [data]
    if changes:
        with Connection(shop.broker.port) as connection:
            folders = [
                data / "topics" / seen.id.hex()
                for seen in calls.topics(connection)
                if seen.name.startswith("derived") and seen.name != INPUT
            ]
    digest = hashlib.sha256()
    for path in [*_files(folders), *sorted(shop.app_data.glob("shop.db*"))]:
        if not path.name.endswith("-shm"):
            digest.update(str(path).encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _files(folders: Sequence[Path]) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
