"""X22, slow and many: thousands that do nothing, and some that take all the time there is.

Five thousand connections are opened and left. Beside them are clients that send a request byte by byte, that send half
of one and no more, that ask for much and never read, and that close their half and stay; the port for metrics has slow
ones of its own. What must hold: a good client's thousand requests are all answered; each slow one is closed at the
deadline, and each idle one when it has been idle for long enough; an open connection costs less than 64 KB; answers
that nobody reads cost a bounded amount; and afterwards the broker has the descriptors that it had before.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import selectors
import socket
import struct
import time
from collections.abc import Iterator

from bench.faults import calls
from bench.faults.batches import build_batch
from bench.faults.bystander import Bystander
from bench.faults.codec import array, int8, int16, int32, int64, string
from bench.faults.connection import Connection
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "allow_files", "run"]

FAULT = "X22"
UNPROTECTED = {"sweep": r"not closed", "answer-limit": r"read nothing cost"}

_SLOW_S = 3.0
_IDLE_S = 12.0
_SLACK_S = 40.0
_KB_EACH_MAX = 64
_MANY = 5_000
_ANSWERS_MB_MAX = 64
_GOOD_REQUESTS = 1000
_TOPIC = "large"
_SLOW_SCRAPES = 4


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "sweep",
    idle: int = _MANY,
    slow: int = 40,
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    if not protected:
        idle, slow = 200, 8
    options = ["--metrics", "127.0.0.1:0"]
    for name, value in (
        ("headrace.slow.client.timeout.ms", int(_SLOW_S * 1000)),
        ("connections.max.idle.ms", int(_IDLE_S * 1000)),
        ("headrace.queued.max.response.bytes", _ANSWERS_MB_MAX << 20),
    ):
        options += ["--set", f"{name}={value}"]
    starter = [] if protected else ["--without", without]
    allow_files(idle + 1000)
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, options=options, forked=True) as broker,
    ):
        broker.start()
        try:
            scene = _Scene(broker, rng, outcome)
            scene.play(idle, slow)
            broker.expect_alive()
        except BrokerDied as died:
            outcome.problems.append(str(died))
        outcome.problems += [f"the broker did not foresee:\n{trace}" for trace in broker.traces()]
        outcome.peak_rss_mb = broker.rss_mb("VmHWM")
    return outcome


class _Scene:
    def __init__(self, broker: BrokerProcess, rng: random.Random, outcome: Outcome) -> None:
        self._broker = broker
        self._rng = rng
        self._outcome = outcome

    def play(self, idle: int, slow: int) -> None:
        outcome, broker = self._outcome, self._broker
        self._fill()
        bystander = Bystander(broker.port)
        bystander.prepare()
        time.sleep(0.2)
        files, rss_mb = self._files(), broker.rss_mb()
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(self._connect()) for _ in range(idle)]
            outcome.hits += idle
            idle_since = time.monotonic()
            self._expect_answers()
            each_kb = (broker.rss_mb() - rss_mb) * 1024 / idle
            outcome.figures["kb_each"] = each_kb
            if each_kb > _KB_EACH_MAX:
                outcome.problems.append(f"{idle} idle connections cost {each_kb:.0f} KB each")
            bystander.start()
            before_mb = broker.rss_mb("VmHWM")
            self._attack(stack, slow)
            grown = broker.rss_mb("VmHWM") - before_mb
            outcome.figures["slow_mb"] = grown
            if grown > _ANSWERS_MB_MAX + 64:
                outcome.problems.append(f"{slow} clients that read nothing cost {grown:.0f} MB")
            each_kb = (broker.rss_mb("VmHWM") - rss_mb) * 1024 / (idle + slow)
            outcome.figures["kb_each_with_slow"] = each_kb
            # What a few that read nothing are owed is shared out among many.
            if idle >= _MANY and each_kb > _KB_EACH_MAX:
                outcome.problems.append(f"{idle} idle and {slow} slow connections cost {each_kb:.0f} KB each")
            if outcome.problems and idle < _GOOD_REQUESTS:
                # Without its protection, and caught.
                bystander.finish(5.0)
                return
            deadline = time.monotonic() + 60
            while (
                bystander.requests < _GOOD_REQUESTS and bystander.is_alive() and time.monotonic() < deadline
            ):
                time.sleep(0.01)
            if bystander.requests < _GOOD_REQUESTS:
                outcome.problems.append(f"the good client got {bystander.requests} answers in a minute")
            outcome.problems += bystander.finish()
            outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
            closed = _wait_closed(opened, idle_since + _IDLE_S + _SLACK_S)
            if closed < idle:
                outcome.problems.append(f"{idle - closed} of {idle} idle connections were not closed")
        deadline = time.monotonic() + 10
        while (now := self._files()) > files and time.monotonic() < deadline:
            time.sleep(0.05)
        if now > files:
            outcome.problems.append(f"the broker has {now} open files, and had {files} before")

    def _files(self) -> int:
        return len(os.listdir(f"/proc/{self._broker.pid}/fd"))

    @property
    def _metrics_port(self) -> int:
        found = re.search(rb"metrics are at http://127\.0\.0\.1:(\d+)/", self._broker.said())
        assert found is not None
        return int(found[1])

    def _connect(self, receive_buffer: int = 0, port: int = 0) -> socket.socket:
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", port or self._broker.port))
        return connection

    def _fill(self) -> None:
        with Connection(self._broker.port) as connection:
            calls.create_topic(connection, _TOPIC, 1)
            value = self._rng.randbytes(900_000)
            for _ in range(20):
                calls.produce(connection, _TOPIC, 0, build_batch([value], int(time.time() * 1000)))

    def _expect_answers(self) -> None:
        """Also tells that all who connected before have been let in."""
        with Connection(self._broker.port, timeout_s=30) as connection:
            if not calls.topics(connection):
                self._outcome.problems.append("no topics are told of among many connections")

    # Slow ones

    def _attack(self, stack: contextlib.ExitStack, slow: int) -> None:
        kinds = (self._trickle, self._half_a_request, self._never_read, self._half_closed)
        attackers: list[tuple[str, socket.socket, Iterator[None]]] = []
        for number in range(slow):
            kind = kinds[number % len(kinds)]
            connection = stack.enter_context(self._connect(4096))
            attackers.append((kind.__name__, connection, kind(connection)))
        for _ in range(_SLOW_SCRAPES):
            connection = stack.enter_context(self._connect(4096, self._metrics_port))
            attackers.append(("_trickle_http", connection, self._trickle_http(connection)))
        began = time.monotonic()
        closed: dict[socket.socket, float] = {}
        awaited = {connection for name, connection, _ in attackers if name != "_half_closed"}
        while not awaited <= closed.keys() and time.monotonic() < began + _SLOW_S + _SLACK_S:
            for _, connection, steps in attackers:
                if connection in closed:
                    continue
                try:
                    next(steps, None)
                    if _is_closed(connection):
                        closed[connection] = time.monotonic() - began
                except OSError:
                    closed[connection] = time.monotonic() - began
            time.sleep(0.1)
        for name, connection, _ in attackers:
            self._outcome.hits += 1
            if name == "_half_closed":
                # What fits into the kernel's buffers is the kernel's to deliver. That the broker has let go of it shows
                # in its open files only, at the end.
                continue
            if connection not in closed:
                self._outcome.problems.append(f"{name}: not closed after {_SLOW_S + _SLACK_S:.0f} s")
            elif closed[connection] < _SLOW_S * 0.9 and name != "_never_read":
                self._outcome.problems.append(f"{name}: closed after {closed[connection]:.1f} s already")

    def _trickle(self, connection: socket.socket) -> Iterator[None]:
        whole = _framed(int16(3) + int16(1) + int32(1) + string("trickle" * 100) + array([]))
        for byte in whole[:-1]:
            connection.send(bytes([byte]))
            yield

    def _trickle_http(self, connection: socket.socket) -> Iterator[None]:
        for byte in b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 2000:
            connection.send(bytes([byte]))
            yield

    def _half_a_request(self, connection: socket.socket) -> Iterator[None]:
        connection.sendall(struct.pack(">ih", 50 << 20, 0) + self._rng.randbytes(50_000))
        yield

    def _never_read(self, connection: socket.socket) -> Iterator[None]:
        for _ in range(40):
            connection.sendall(_framed(_fetch_much()))
        while True:
            yield

    def _half_closed(self, connection: socket.socket) -> Iterator[None]:
        connection.sendall(_framed(_fetch_much(wait_ms=2**31 - 1, least=2**31 - 1)))
        connection.shutdown(socket.SHUT_WR)
        yield


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _fetch_much(wait_ms: int = 0, least: int = 0) -> bytes:
    body = int32(-1) + int32(wait_ms) + int32(least) + int32(2**31 - 1) + int8(0) + int32(0) + int32(-1)
    wanted = int32(0) + int32(-1) + int64(0) + int64(-1) + int32(2**31 - 1)
    body += array([string(_TOPIC) + array([wanted])]) + array([]) + string("")
    return int16(1) + int16(11) + int32(1) + string("slow") + body


def _is_closed(connection: socket.socket) -> bool:
    """Whether the broker has hung up; what it sent is left where it is, unread."""
    state = struct.unpack("B", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
    return bool(state in _GONE)


# Of the kernel: FIN_WAIT2 is our half closed and theirs not; CLOSE_WAIT is theirs closed.
_TIME_WAIT, _CLOSE, _CLOSE_WAIT, _LAST_ACK = 6, 7, 8, 9
_GONE = (_TIME_WAIT, _CLOSE, _CLOSE_WAIT, _LAST_ACK)


def _wait_closed(connections: list[socket.socket], deadline: float) -> int:
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.2):
                selector.unregister(key.fileobj)
        return len(connections) - len(selector.get_map())


def allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
