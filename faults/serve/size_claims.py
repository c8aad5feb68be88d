"""Fault X19, false sizes, in requests to ``headrace serve`` over HTTP, WebSocket and PostgreSQL's protocol.

Every case has its own connection, beside a well-behaved client. Many cases also run before the login. What must hold:
the server closes the connection with the protocol's code (413, 431 or 400; 1009 or 1002; 08P01). If the size is within
the limits, it closes the connection at the receive deadline. The server's memory never grows by more than the sent
bytes plus 16 MB. The well-behaved client is served throughout.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.serve.bystander import ServedBystander
from faults.serve.http_sizes import BODY_MAX, CLOSED, FalseSize, http_code, http_lies, socket_lies
from faults.serve.postgres_sizes import postgres_code, postgres_lies
from faults.serve.scene import ServedShop

__all__ = ["RUNS", "UNPROTECTED", "run"]

FAULT = "X19"
UNPROTECTED = {
    "body-limit": r"a body of \d+.* bytes cost \d+ MB",
    "message-limit": r"a message.* bytes cost \d+ MB",
    "socket-limit": r"a frame of \w+ of \d+.*: the connection was not closed",
    "requests-ahead": r"requests at once: \d+ bytes cost \d+ MB",
}
RUNS = 5

_GROWTH_MB_MAX = 16.0
_SETTINGS = {"receive_ms": 700, "body_bytes_max": BODY_MAX}
_CLOSED_S_MAX = 30.0
_CAUGHT_S_MAX = 3.0
_CAUGHT_BY = {
    "body-limit": "a body of",
    "message-limit": "a message",
    "socket-limit": "a frame of",
    "requests-ahead": "20,000 requests",
}
"""Prefixes of the cases that show a missing protection."""
_GREETINGS_MAX = 20
_SETTLED_S = 0.02
_SETTLED_S_MAX = 20.0


@dataclass(frozen=True, slots=True)
class _Port:
    number: int
    lies: Sequence[FalseSize]
    code: Callable[[bytes], str]


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "body-limit",
    cases_max: int = 0,
    selects: bool = True,
) -> Outcome:
    """``cases_max``: the maximum number of cases per port, without cases that wait for a deadline; 0 means all."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        ServedShop(home, _SETTINGS, without="" if protected else without) as shop,
    ):
        bystander = ServedBystander(shop, selects=selects and protected)
        bystander.prepare()
        ports = [
            _Port(shop.server.port, list(http_lies(rng, shop.writer)), http_code),
            _Port(shop.server.port, list(socket_lies(rng, shop.reader)), http_code),
            _Port(shop.pg_port, list(postgres_lies(rng, shop.reader)), postgres_code),
        ]
        attack = _Attack(shop, outcome, _CLOSED_S_MAX if protected else _CAUGHT_S_MAX)
        bystander.start()
        for port in ports:
            chosen = [lie for lie in port.lies if not (cases_max and lie.waits)]
            if not protected:
                chosen = [lie for lie in chosen if lie.name.startswith(_CAUGHT_BY[without])][:1]
            rng.shuffle(chosen)
            attack.send(port, chosen[:cases_max] if cases_max else chosen)
        outcome.problems += bystander.finish(120.0 if protected else 5.0)
        outcome.problems += shop.unexpected_exceptions()
        if not shop.server.is_running:
            outcome.problems.append("the server exited unexpectedly")
        outcome.cases = max(outcome.hits, 1)
        outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
        outcome.peak_rss_mb = shop.server.rss_mb("VmHWM")
    return outcome


class _Attack:
    def __init__(self, shop: ServedShop, outcome: Outcome, closed_s_max: float) -> None:
        self._server = shop.server
        self._closed_s_max = closed_s_max
        self._outcome = outcome
        self._base_mb = self._before_mb = self._server.reset_peak_mb()
        self._sent_bytes = 0

    def send(self, port: _Port, lies: Sequence[FalseSize]) -> None:
        waiting: list[tuple[FalseSize, socket.socket, bytearray]] = []
        with contextlib.ExitStack() as stack:
            for lie in lies:
                connection, answer = self._greet(port, lie)
                stack.enter_context(connection)
                self._outcome.hits += 1
                self._before_mb = self._server.reset_peak_mb()
                with contextlib.suppress(ConnectionError):
                    connection.sendall(lie.raw)
                waiting.append((lie, connection, answer))
                if not lie.waits:
                    self._expect_closed(port, [waiting.pop()])
                    connection.close()
                self._judge_memory(lie)
            self._expect_closed(port, waiting)

    def _greet(self, port: _Port, lie: FalseSize) -> tuple[socket.socket, bytearray]:
        """Connect, and send the greeting if the case has one. Return the connection and the response to the greeting.

        The test lowers the deadline for a greeting, so on a busy machine the server may close a connection before it
        has read the greeting.
        """
        for _ in range(_GREETINGS_MAX):
            connection = socket.create_connection(("127.0.0.1", port.number), timeout=_CLOSED_S_MAX)
            answer = bytearray()
            if lie.greeting:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(lie.greeting)
                    answer += connection.recv(65_536)
            if answer or not lie.greeting:
                break
            connection.close()
        else:
            raise AssertionError(
                f"{lie.name}: the server closed {_GREETINGS_MAX} connections without a response"
            )
        return connection, answer

    def _expect_closed(
        self, port: _Port, waiting: Sequence[tuple[FalseSize, socket.socket, bytearray]]
    ) -> None:
        deadline = time.monotonic() + self._closed_s_max
        reset: set[int] = set()
        with selectors.DefaultSelector() as selector:
            for _, connection, answer in waiting:
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, answer)
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(0.1):
                    try:
                        is_open = _read(key.fileobj, key.data)  # type: ignore[arg-type]
                    except ConnectionError:
                        is_open = False
                        reset.add(key.fd)
                    if not is_open:
                        selector.unregister(key.fileobj)
            still_open = {key.fd for key in selector.get_map().values()}
        for lie, connection, answer in waiting:
            if connection.fileno() in still_open:
                self._report_problem(f"{lie.name}: the connection was not closed")
            elif (code := port.code(bytes(answer))) not in lie.expected:
                if code == CLOSED and connection.fileno() in reset:
                    # Later data made the kernel discard the response, but the connection is closed.
                    self._outcome.figures["resets"] = self._outcome.figures.get("resets", 0) + 1
                    continue
                due = " or ".join(code or "no response" for code in lie.expected)
                self._report_problem(f"{lie.name} got {code or 'no response'} instead of {due}")

    def _judge_memory(self, lie: FalseSize) -> None:
        """Wait until the memory is stable: the server can still work on the bytes after the connection is closed."""
        deadline = time.monotonic() + _SETTLED_S_MAX
        before = -1.0
        while (peak_mb := self._server.rss_mb("VmHWM")) > before and time.monotonic() < deadline:
            before = peak_mb
            if len(lie.raw) > 100_000:
                time.sleep(_SETTLED_S)
        size = len(lie.greeting) + len(lie.raw)
        self._sent_bytes += size
        for what, sent_bytes, grown_mb in (
            (lie.name, size, peak_mb - self._before_mb),
            ("all cases so far", self._sent_bytes, peak_mb - self._base_mb),
        ):
            if grown_mb > _GROWTH_MB_MAX + sent_bytes / (1 << 20):
                self._report_problem(f"{what}: {sent_bytes} bytes cost {grown_mb:.0f} MB")

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)


def _read(connection: socket.socket, answer: bytearray) -> bool:
    """Return False if the connection has closed. Keep only the beginning of the response."""
    try:
        piece = connection.recv(1 << 16)
    except BlockingIOError:
        return True
    if len(answer) < 1 << 20:
        answer += piece
    return bool(piece)
