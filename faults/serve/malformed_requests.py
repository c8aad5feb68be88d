"""Fault X20, malformed requests to ``headrace serve`` over HTTP, WebSocket and PostgreSQL's protocol, mutated from real
traffic.

Two stages run, each beside a well-behaved client:

    nothing may change     the attacker may read everything and write nothing. The hashes of the log's data directory
                           and of the store must stay the same
    anything may happen    the attacker may write one topic. The store and all other topics must stay the same

The server must respond to each request as its protocol requires, with a status and a code that blame the request and
not the server, or close the connection. It must log no unexpected exception and keep serving.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

from faults.file_digests import changed_files, file_digests
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.connection import Connection
from faults.protocol.mutation import mutated
from faults.run_directory import run_directory
from faults.serve.bystander import ServedBystander
from faults.serve.postgres_sizes import message
from faults.serve.scene import INPUT, ServedShop
from faults.serve.traffic import recorded_sessions, requests, subscription, upgrade

__all__ = ["CASES", "RUNS", "UNPROTECTED", "run"]

FAULT = "X20"
UNPROTECTED = {
    "message-check": r"unexpected exception",
    "parameter-check": r"got the response 500",
    "first-message": r"unexpected exception",
}
CASES = 500
RUNS = 20

_CONCURRENT_MAX = 40
_ENDED_S_MAX = 30.0
_SETTINGS = {"receive_ms": 700, "sql_ms": 2_000}
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_QUERY_VALUE = re.compile(rb"[?&]\w+=([^&]*)")
_STATE = re.compile(r"[0-9A-Z]{5}")
_INTERNAL = "XX000"
# 501: an optional dependency is missing. 503: the server is busy. 504: a time limit was exceeded. These
# responses are correct.
_TEMPORARY_OR_OPTIONAL = (501, 503, 504)
_AFTER_WEBSOCKET_S = 0.2
_SYNCS = 40

Sent = tuple[str, int, bytes, bytes]
"""The kind, the port, the bytes that are sent first and get a response, and the mutated message."""


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "message-check",
    cases: int = CASES,
    selects: bool = True,
) -> Outcome:
    """``selects``: also send SQL statements, which run in separate processes."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed, cases=cases)
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        ServedShop(home, _SETTINGS, without="" if protected else without) as shop,
    ):
        bystander = ServedBystander(shop, selects=selects)
        bystander.prepare()
        sessions = recorded_sessions(shop, selects=selects)
        bystander.start()
        for may_write, count in ((False, cases // 2), (True, cases - cases // 2)):
            token = shop.writer if may_write else shop.reader
            attacks = _mutated_requests(
                rng, shop, requests(token, changes=may_write or not protected), sessions, token
            )
            before = _protected_digests(shop, may_write=may_write)
            for chunk in _chunks([next(attacks) for _ in range(count)]):
                outcome.hits += len(chunk)
                outcome.problems += _problems(chunk)
            if changed := changed_files(before, _protected_digests(shop, may_write=may_write)):
                outcome.problems.append(
                    f"files changed that no client may write (the token may write: {may_write}): {changed}"
                )
        outcome.problems += bystander.finish()
        outcome.problems += shop.unexpected_exceptions()
        if not shop.server.is_running:
            outcome.problems.append("the server exited unexpectedly")
        outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
        outcome.peak_rss_mb = shop.server.rss_mb("VmHWM")
    return outcome


def _mutated_requests(
    rng: random.Random,
    shop: ServedShop,
    valid_requests: Sequence[bytes],
    sessions: Sequence[bytes],
    token: str,
) -> Iterator[Sent]:
    """Yield mutated requests to all routes in turn. The credentials often stay intact, so that the login succeeds."""
    number = rng.randrange(len(valid_requests))
    while True:
        kind = rng.random()
        if kind < 0.5:
            request = valid_requests[number % len(valid_requests)]
            number += 1
            yield "a request", shop.server.port, b"", _mutate_request(rng, request, token.encode())
        elif kind < 0.6:
            yield "a handshake", shop.server.port, b"", mutated(rng, upgrade(token))
        elif kind < 0.75:
            yield "a frame", shop.server.port, upgrade(token), mutated(rng, subscription())
        else:
            session = _mutate_beside_token(rng, rng.choice(sessions), shop.reader.encode())
            # The server reads the bytes after a truncated message as a part of that message. All Sync
            # messages together are longer than any claimed length, so the server still receives Terminate.
            end = message(b"S", b"") * _SYNCS + message(b"X", b"")
            yield "a message", shop.pg_port, b"", session + end


def _mutate_request(rng: random.Random, raw: bytes, token: bytes) -> bytes:
    """Mutate only the value of a query parameter in half of the requests that have one. Almost all other mutations of
    the path make the request line invalid, so that no parameter is parsed.
    """
    values = list(_QUERY_VALUE.finditer(raw.partition(b" HTTP/1.1\r\n")[0]))
    if not values or rng.random() < 0.5:
        return _mutate_beside_token(rng, raw, token)
    value = rng.choice(values)
    encoded = quote(mutated(rng, unquote_to_bytes(value[1]))).encode()
    return raw[: value.start(1)] + encoded + raw[value.end(1) :]


def _mutate_beside_token(rng: random.Random, raw: bytes, token: bytes) -> bytes:
    before, token_in_raw, after = raw.partition(token)
    if not token_in_raw or rng.random() < 0.1:
        return mutated(rng, raw)
    if rng.random() < 0.4:
        return mutated(rng, before) + token_in_raw + after
    return before + token_in_raw + mutated(rng, after)


# Responses


def _chunks(sent: Sequence[Sent]) -> Iterable[Sequence[Sent]]:
    return (sent[at : at + _CONCURRENT_MAX] for at in range(0, len(sent), _CONCURRENT_MAX))


def _problems(chunk: Sequence[Sent]) -> Iterator[str]:
    """Send the requests concurrently, because some get a response only at the receive deadline."""
    with contextlib.ExitStack() as stack:
        exchanges: list[tuple[Sent, socket.socket, bytearray]] = []
        for request in chunk:
            _, port, greeting, raw = request
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            with contextlib.suppress(OSError):
                if greeting:
                    connection.sendall(greeting)
                    connection.recv(65_536)
                connection.sendall(raw)
            exchanges.append((request, connection, bytearray()))
        still_open = _read_all(exchanges)
        for (kind, _, _, raw), connection, answer in exchanges:
            if connection.fileno() in still_open:
                yield f"{kind} got no response, and the connection stayed open: {raw[:300]!r}"
            elif problem := _JUDGES[kind](bytes(answer), raw):
                yield f"{kind} got the response {problem}: {raw[:300]!r}"


def _read_all(exchanges: Sequence[tuple[Sent, socket.socket, bytearray]]) -> set[int]:
    """Wait until each request has a response or its connection is closed. Return the descriptors of the others."""
    deadline = time.monotonic() + _ENDED_S_MAX
    with selectors.DefaultSelector() as selector:
        for request, connection, answer in exchanges:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, (request[0], answer, time.monotonic()))
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
            # A mutated subscription that is still valid continues, so do not wait for its end.
            for key in list(selector.get_map().values()):
                kind, _, since = key.data
                if kind == "a frame" and time.monotonic() - since > _AFTER_WEBSOCKET_S:
                    selector.unregister(key.fileobj)
        return {key.fd for key in selector.get_map().values()}


def _is_answered(answer: bytearray) -> bool:
    head, separator, body = bytes(answer).partition(b"\r\n\r\n")
    if not separator:
        return False
    length = _LENGTH.search(head + b"\r\n")
    return length is None or len(body) >= int(length[1])


def _judge_http(answer: bytes, raw: bytes) -> str:
    if not answer:
        return ""
    match = _STATUS.match(answer)
    if match is None:
        return f"{answer[:60]!r}"
    status = int(match[1])
    if status < 400:
        return ""
    if status >= 500 and status not in _TEMPORARY_OR_OPTIONAL:
        return str(status)
    head, _, body = answer.partition(b"\r\n\r\n")
    if raw[:4] == b"HEAD" or not body:
        return ""
    if b"application/problem+json" not in head:
        return (
            "" if b"text/plain" in head and b"101" not in match[0] else f"{status} without a problem document"
        )
    try:
        problem = json.loads(body)
    except ValueError:
        return f"{status} with a body that is not JSON"
    is_consistent = problem.get("status") == status and str(problem.get("code")).startswith("HR-")
    return "" if is_consistent else f"{status} and {problem.get('status')} {problem.get('code')}"


def _judge_frame(answer: bytes, raw: bytes) -> str:
    """The server must not mask its frames, and no close frame may report a failure of the server."""
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
            return f"{answer[at : at + 20]!r}, which is not a message"
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


# Checks of what must not change


def _protected_digests(shop: ServedShop, *, may_write: bool) -> dict[Path, str]:
    """Return the digests of the store and of the log's data directory, without the topic that may be written."""
    folders = [shop.broker.data]
    if may_write:
        with Connection(shop.broker.port) as connection:
            folders = [
                shop.broker.data / "topics" / topic.id.hex()
                for topic in calls.topics(connection)
                if topic.name.startswith("derived") and topic.name != INPUT
            ]
    stores = [path for path in shop.app_data.glob("shop.db*") if not path.name.endswith("-shm")]
    return file_digests([*folders, *stores])
