"""Fault X22, slow and many connections to ``headrace serve`` over HTTP, WebSocket and PostgreSQL's protocol.

Thousands of connections are opened on each port and left idle. Beside them are clients that send a byte every ten
seconds at each point where the server waits, that send many requests and never read the responses, that flood a
subscription with pings, that close only their half of the connection, and that vanish without a packet. Expected: all
thousand requests of a well-behaved client get a response. The server closes each slow client at its deadline. An open
connection costs less than 64 KB, and unread responses cost a bounded amount. Afterwards the server has as many file
descriptors as before.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import time
from collections.abc import Sequence

from faults.log.slow_clients import (
    SlowClient,
    allow_files,
    connect,
    open_files,
    send_slowly,
    send_without_reading,
    vanish,
    wait_until_closed,
)
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.serve.bystander import ServedBystander
from faults.serve.postgres_sizes import message, startup
from faults.serve.scene import INPUT, VIEW, ServedShop
from faults.serve.traffic import masked, upgrade

__all__ = ["RUNS", "UNPROTECTED", "run"]

FAULT = "X22"
UNPROTECTED = {
    "http-sweep": r"HTTP.*not closed",
    "pg-deadlines": r"PostgreSQL.*not closed",
    "unsent-limit": r"clients that read nothing cost",
}
RUNS = 2

_IDLE_CONNECTIONS = 5_000
_KB_PER_CONNECTION_MAX = 64
_UNREAD_MB_MAX = 64
_OVERHEAD_MB = 64
_GOOD_REQUESTS = 1_000
_SEND_S = 30.0
_IDLE_S = 60.0
_SLACK_S = 20.0
_PINGS_BYTES = 30 << 20


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "http-sweep",
    idle: int = _IDLE_CONNECTIONS,
    receive_s: float = 12.0,
    every_s: float = 10.0,
    unread: bool = True,
) -> Outcome:
    """``every_s`` is the time between two bytes of a slow client; ``receive_s`` is the server's time limit for a whole
    request. If ``unread`` is false, skip the clients that never read and the clients that idle: the server's deadlines
    for them cannot be shortened.
    """
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    if not protected:
        idle, receive_s, every_s, unread = 100, 1.5, 1.25, without == "unsent-limit"
    allow_files(3 * idle + 2_000)
    settings = {
        "receive_ms": int(receive_s * 1_000),
        "connections": idle + 500,
        "pg_connections": idle + 500,
        "pg_connections_per_address": idle + 500,
        "pg_connections_per_token": idle + 500,
        "pg_idle_ms": int(2 * receive_s * 1_000),
        "unsent_bytes_max": _UNREAD_MB_MAX << 20,
    }
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        ServedShop(home, settings, without="" if protected else without) as shop,
    ):
        files_max = 3 * idle + 2_000
        resource.prlimit(shop.server.pid, resource.RLIMIT_NOFILE, (files_max, files_max))
        scene = _Scene(shop, rng, outcome, receive_s, every_s)
        scene.run(idle, unread=unread, protected=protected)
        outcome.problems += shop.unexpected_exceptions()
        if not shop.server.is_running:
            outcome.problems.append("the server exited unexpectedly")
        outcome.peak_rss_mb = shop.server.rss_mb("VmHWM")
    return outcome


class _Scene:
    def __init__(
        self, shop: ServedShop, rng: random.Random, outcome: Outcome, receive_s: float, every_s: float
    ) -> None:
        self._shop = shop
        self._rng = rng
        self._outcome = outcome
        self._receive_s = receive_s
        self._every_s = every_s

    def run(self, idle: int, *, unread: bool, protected: bool) -> None:
        outcome, server = self._outcome, self._shop.server
        bystander = ServedBystander(self._shop, pause_s=0.0, selects=unread)
        bystander.prepare()
        files = open_files(server.pid)
        with contextlib.ExitStack() as stack:
            bystander.start()
            if protected:
                self._open_idle(
                    stack, idle, "HTTP", server.port, (b"", self._idle_request()) if unread else (b"",)
                )
                self._open_idle(stack, idle, "PostgreSQL", self._shop.pg_port, (b"", self._login()))
            clients = [*self._http_clients(stack), *self._pg_clients(stack)]
            self._rng.shuffle(clients)
            outcome.hits += len(clients)
            outcome.problems += wait_until_closed(clients, _SLACK_S if protected else 3.0)
            if unread:
                self._leave_unread(stack, protected=protected)
            if protected:
                bystander.wait_for(_GOOD_REQUESTS, 60.0)
            outcome.problems += bystander.finish(60.0 if protected else 5.0)
            outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
        if protected:
            self._expect_files(files)

    # Many clients

    def _open_idle(
        self, stack: contextlib.ExitStack, idle: int, protocol: str, port: int, sent: Sequence[bytes]
    ) -> None:
        """Open connections and leave them: some have sent nothing, others are idle after a request."""
        server = self._shop.server
        before_mb = server.rss_mb()
        connections = []
        for number in range(idle):
            connection = connect(port, 0)
            stack.callback(connection.close)
            connections.append(connection)
            if raw := sent[number % len(sent)]:
                connection.sendall(raw)
        # If the last client has a response, the server has accepted all earlier ones.
        with contextlib.suppress(TimeoutError):
            connections[-1].settimeout(5.0)
            if sent[(idle - 1) % len(sent)]:
                connections[-1].recv(1)
            else:
                time.sleep(0.3)
        each_kb = (server.rss_mb() - before_mb) * 1024 / idle
        self._outcome.hits += idle
        self._outcome.figures[f"kb_each_{protocol}"] = each_kb
        if idle >= _IDLE_CONNECTIONS and each_kb > _KB_PER_CONNECTION_MAX:
            self._report_problem(f"{idle} idle connections of {protocol} cost {each_kb:.0f} KB each")
        idle_s = _IDLE_S if protocol == "HTTP" else 2 * self._receive_s
        deadline_s = idle_s if len(sent) > 1 else self._receive_s
        clients = [
            SlowClient(f"{protocol}, idle", connection, iter(()), deadline_s, may_be_early=True)
            for connection in connections
        ]
        self._outcome.problems += wait_until_closed(clients, _SLACK_S)[:3]

    def _idle_request(self) -> bytes:
        return b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    def _login(self) -> bytes:
        return startup() + message(b"p", self._shop.reader.encode() + b"\0")

    # Slow clients

    def _http_clients(self, stack: contextlib.ExitStack) -> list[SlowClient]:
        head = f"POST /v1/topics/{INPUT}/records HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Authorization: Bearer {self._shop.writer}\r\n"
        body = (head + "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n").encode()
        chunks = (
            head + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n"
        ).encode()
        first = {
            "head": b"",
            "body": body,
            "chunk": chunks,
            "second request": self._idle_request(),
            "first message of a WebSocket": upgrade(self._shop.reader),
            "frame of a WebSocket": upgrade(self._shop.reader) + b"",
        }
        rest = {
            "head": b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 2_000,
            "second request": b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 2_000,
            "first message of a WebSocket": b"",
            "frame of a WebSocket": masked(b"x" * 1_000),
        }
        clients = []
        for name, begin in first.items():
            whole = rest.get(name, b"x" * 1_000)
            # The server sends the reason over the WebSocket, and the client has ten seconds to confirm it.
            more_s = 10.0 if "WebSocket" in name else 0.0
            clients.append(self._slow(stack, f"HTTP, {name}", self._shop.server.port, begin, whole, more_s))
        clients += self._open_half_closed(stack, "HTTP", self._shop.server.port, body)
        return clients

    def _pg_clients(self, stack: contextlib.ExitStack) -> list[SlowClient]:
        port = self._shop.pg_port
        statement = message(b"Q", b"SELECT " + b" " * 1_000 + b"1\0")
        clients = [
            self._slow(stack, "PostgreSQL, startup", port, b"", startup(application_name="x" * 500)),
            self._slow(stack, "PostgreSQL, password", port, startup(), message(b"p", b"x" * 500 + b"\0")),
            self._slow(stack, "PostgreSQL, statement", port, self._login(), statement),
        ]
        return clients + self._open_half_closed(stack, "PostgreSQL", port, self._login() + statement[:50])

    def _slow(
        self,
        stack: contextlib.ExitStack,
        name: str,
        port: int,
        first: bytes,
        whole: bytes,
        more_s: float = 0.0,
    ) -> SlowClient:
        connection = connect(port)
        stack.callback(connection.close)
        steps = send_slowly(connection, whole, self._every_s, first)
        return SlowClient(name, connection, steps, self._receive_s + more_s, may_be_early=more_s > 0)

    def _open_half_closed(
        self, stack: contextlib.ExitStack, where: str, port: int, begin: bytes
    ) -> list[SlowClient]:
        """Open half-closed and half-open connections. Only the server's open files show whether it closed them."""
        for _ in range(5):
            vanished = connect(port)
            vanished.sendall(begin)
            if vanish(vanished):
                self._outcome.hits += 1
            else:
                vanished.close()
        closed = connect(port)
        stack.callback(closed.close)
        closed.sendall(begin)
        closed.shutdown(socket.SHUT_WR)
        self._outcome.hits += 1
        return []

    # Clients that never read

    def _leave_unread(self, stack: contextlib.ExitStack, *, protected: bool) -> None:
        server, reader = self._shop.server, self._shop.reader
        rows = (
            f"GET /v1/views/{VIEW}/rows?limit=1000 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {reader}\r\n\r\n"
        ).encode()
        select = message(b"Q", f"SELECT * FROM {VIEW}\0".encode())
        pings = masked(bytes(125), 0x89)
        before_mb = server.reset_peak_mb()
        kinds = (
            ("HTTP, unread rows", server.port, rows, 3, b"", 12),
            ("PostgreSQL, unread rows", self._shop.pg_port, select, 3, self._login(), 12),
            ("HTTP, unread pongs", server.port, pings, _PINGS_BYTES // len(pings), upgrade(reader), 6),
        )
        clients = []
        for name, port, request, count, first, how_many in kinds:
            for _ in range(how_many):
                connection = connect(port)
                stack.callback(connection.close)
                steps = send_without_reading(connection, request, count, first)
                clients.append(SlowClient(name, connection, steps, 2 * _SEND_S, may_be_early=True))
        self._outcome.hits += len(clients)
        problems = wait_until_closed(clients, _SLACK_S if protected else 0.0)
        if protected:
            self._outcome.problems += problems
        grown_mb = server.rss_mb("VmHWM") - before_mb
        self._outcome.figures["unread_mb"] = grown_mb
        if grown_mb > _UNREAD_MB_MAX + _OVERHEAD_MB:
            self._report_problem(f"{len(clients)} clients that read nothing cost {grown_mb:.0f} MB")

    def _expect_files(self, before: int) -> None:
        server = self._shop.server
        deadline = time.monotonic() + self._receive_s + _IDLE_S + _SLACK_S
        while (now := open_files(server.pid)) > before and time.monotonic() < deadline:
            time.sleep(0.05)
        if now > before:
            self._report_problem(f"the server has {now} open files, but had {before} before")

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)
