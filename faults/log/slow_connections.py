"""Fault X22, slow and many connections: thousands that are idle, and some that are as slow as possible.

Five thousand connections are opened and left idle. Beside them are clients that send a byte every ten seconds, that
send half of a request, that request large responses and never read them, that close only their half of the connection,
and that vanish without a packet. The metrics port has more connections than it serves at once. Expected:

    all thousand requests of a well-behaved client, and every scrape, get a response
    the broker closes each slow client at its deadline, and each idle client at the idle limit
    an open connection costs less than 64 KB, and unread responses cost a bounded amount
    afterwards the broker has as many file descriptors as before
"""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from faults.log.bystander import Bystander
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
from faults.protocol import calls
from faults.protocol.batches import build_batch
from faults.protocol.codec import array, int8, int16, int32, int64, string
from faults.protocol.connection import Connection
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess

__all__ = ["UNPROTECTED", "run"]

FAULT = "X22"
UNPROTECTED = {
    "sweep": r"_(send_byte_by_byte|send_half_a_request): not closed",
    "answer-limit": r"read nothing cost",
    "scrape-room": r"a scrape failed",
}

_SLOW_S = 12.0
_BYTE_INTERVAL_S = 10.0
_IDLE_S = 40.0
_SLACK_S = 20.0
_METRICS_S = 5.0
_KB_PER_CONNECTION_MAX = 64
_IDLE_CONNECTIONS = 5_000
_RESPONSES_MB_MAX = 64
_GOOD_REQUESTS = 1000
_TOPIC = "large"
_UNREAD = 40
"""Number of responses that each client requests and does not read."""
_SLOW_SCRAPES = 40
_SCRAPE = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 2_000
_METADATA = int16(3) + int16(1) + int32(1) + string("trickle" * 100) + array([])


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "sweep",
    idle: int = _IDLE_CONNECTIONS,
    slow: int = 40,
    slow_s: float = _SLOW_S,
    every_s: float = _BYTE_INTERVAL_S,
    idle_s: float = _IDLE_S,
) -> Outcome:
    """``every_s`` is the time between two bytes of a slow client; ``slow_s`` is the broker's limit for a request."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    if not protected:
        idle, slow, slow_s, every_s, idle_s = 200, 9, 1.5, 1.2, 6.0
    options = ["--metrics", "127.0.0.1:0"]
    for name, value in (
        ("headrace.slow.client.timeout.ms", int(slow_s * 1000)),
        ("connections.max.idle.ms", int(idle_s * 1000)),
        ("headrace.queued.max.response.bytes", _RESPONSES_MB_MAX << 20),
    ):
        options += ["--set", f"{name}={value}"]
    starter = [] if protected else ["--without", without]
    allow_files(idle + 1000)
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, options=options, forked=True) as broker,
    ):
        broker.start()
        try:
            scene = _Scene(broker, rng, outcome, slow_s, every_s, idle_s)
            if not protected:
                # A small load and short waits are enough to show the missing protection.
                scene.shorten_waits()
            scene.run(idle, slow)
            broker.expect_alive()
        except BrokerDied as died:
            outcome.problems.append(str(died))
        outcome.problems += [
            f"the broker logged an unexpected exception:\n{trace}" for trace in broker.unexpected_exceptions()
        ]
        outcome.peak_rss_mb = broker.rss_mb("VmHWM")
    return outcome


class _Scene:
    def __init__(
        self,
        broker: BrokerProcess,
        rng: random.Random,
        outcome: Outcome,
        slow_s: float,
        every_s: float,
        idle_s: float,
    ) -> None:
        self._broker = broker
        self._rng = rng
        self._outcome = outcome
        self._slow_s = slow_s
        self._every_s = every_s
        self._idle_s = idle_s
        self._slack_s = _SLACK_S
        self._unread = _UNREAD

    def shorten_waits(self) -> None:
        self._slack_s, self._unread = 3.0, _UNREAD // 4

    def run(self, idle: int, slow: int) -> None:
        outcome, broker = self._outcome, self._broker
        self._create_large_topic()
        bystander = Bystander(broker.port)
        bystander.prepare()
        time.sleep(0.2)
        files_before, rss_mb = open_files(broker.pid), broker.rss_mb()
        with contextlib.ExitStack() as stack:
            idle_connections = [stack.enter_context(connect(broker.port, 0)) for _ in range(idle)]
            outcome.hits += idle
            idle_since = time.monotonic()
            self._expect_response()
            each_kb = (broker.rss_mb() - rss_mb) * 1024 / idle
            outcome.figures["kb_each"] = each_kb
            if each_kb > _KB_PER_CONNECTION_MAX:
                outcome.problems.append(f"{idle} idle connections cost {each_kb:.0f} KB each")
            bystander.start()
            scraper = _Scraper(self._metrics_port)
            scraper.start()
            before_mb = broker.rss_mb("VmHWM")
            self._attack(stack, slow)
            outcome.problems += scraper.finish()
            growth_mb = broker.rss_mb("VmHWM") - before_mb
            outcome.figures["slow_mb"] = growth_mb
            if growth_mb > _RESPONSES_MB_MAX + 64:
                outcome.problems.append(f"{slow} clients that read nothing cost {growth_mb:.0f} MB")
            each_kb = (broker.rss_mb("VmHWM") - rss_mb) * 1024 / (idle + slow)
            outcome.figures["kb_each_with_slow"] = each_kb
            # This average includes the unread responses of the slow clients, so the check needs many
            # connections.
            if idle >= _IDLE_CONNECTIONS and each_kb > _KB_PER_CONNECTION_MAX:
                outcome.problems.append(f"{idle} idle and {slow} slow connections cost {each_kb:.0f} KB each")
            if outcome.problems and idle < _GOOD_REQUESTS:
                # This is a run without a protection, and it has detected the problem.
                bystander.finish(5.0)
                return
            bystander.wait_for(_GOOD_REQUESTS)
            outcome.problems += bystander.finish()
            outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
            closed = _count_closed(idle_connections, idle_since + self._idle_s + _SLACK_S)
            if closed < idle:
                outcome.problems.append(f"{idle - closed} of {idle} idle connections were not closed")
        deadline = time.monotonic() + 10
        while (open_now := open_files(broker.pid)) > files_before and time.monotonic() < deadline:
            time.sleep(0.05)
        if open_now > files_before:
            outcome.problems.append(f"the broker has {open_now} open files, but had {files_before} before")

    @property
    def _metrics_port(self) -> int:
        match = re.search(rb"metrics are at http://127\.0\.0\.1:(\d+)/", self._broker.output_since_start())
        assert match is not None
        return int(match[1])

    def _create_large_topic(self) -> None:
        with Connection(self._broker.port) as connection:
            calls.create_topic(connection, _TOPIC, 1)
            value = self._rng.randbytes(900_000)
            for _ in range(20):
                calls.produce(connection, _TOPIC, 0, build_batch([value], int(time.time() * 1000)))

    def _expect_response(self) -> None:
        """Check that a request gets a response. The broker has then accepted all earlier connections too."""
        with Connection(self._broker.port, timeout_s=30) as connection:
            if not calls.topics(connection):
                self._outcome.problems.append("with many open connections, a response has no topics")

    # Slow clients

    def _attack(self, stack: contextlib.ExitStack, slow: int) -> None:
        kinds = (self._send_byte_by_byte, self._send_half_a_request, self._request_without_reading)
        clients = []
        for number in range(slow):
            steps = kinds[number % len(kinds)]
            # The broker may close a client that does not read sooner, if all of them together leave too much unread.
            may_be_early = steps == self._request_without_reading
            clients.append(
                self._client(stack, steps.__name__, self._broker.port, steps, may_be_early=may_be_early)
            )
        for name, raw in (("trickled scrape", b""), ("scrape in part", b"GET /metrics HTTP/1.1\r\n")):
            for _ in range(_SLOW_SCRAPES):
                clients.append(
                    self._client(
                        stack,
                        name,
                        self._metrics_port,
                        partial(send_slowly, data=_SCRAPE, every_s=self._every_s, first=raw),
                        deadline_s=_METRICS_S,
                        # The broker may close it sooner, because a complete scrape needs the slot.
                        may_be_early=True,
                    )
                )
        for port, begin in ((self._broker.port, _framed(_METADATA)[:20]), (self._metrics_port, b"GET /me")):
            self._open_half_closed(stack, port, begin)
        self._outcome.hits += len(clients)
        self._outcome.problems += wait_until_closed(clients, self._slack_s)

    def _client(
        self,
        stack: contextlib.ExitStack,
        name: str,
        port: int,
        steps: Callable[[socket.socket], Iterator[None]],
        deadline_s: float = 0.0,
        *,
        may_be_early: bool = False,
    ) -> SlowClient:
        connection = connect(port)
        stack.callback(connection.close)
        return SlowClient(name, connection, steps(connection), deadline_s or self._slow_s, may_be_early)

    def _open_half_closed(self, stack: contextlib.ExitStack, port: int, begin: bytes) -> None:
        """Open half-closed and half-open connections. The number of open files at the end shows whether the broker
        closed them.
        """
        for _ in range(5):
            vanished = connect(port)
            vanished.sendall(begin)
            if vanish(vanished):
                self._outcome.hits += 1
            else:
                vanished.close()
        closed = connect(port)
        stack.callback(closed.close)
        # The broker has already closed the connection if it had no free slot.
        with contextlib.suppress(OSError):
            closed.sendall(_framed(_large_fetch(wait_ms=2**31 - 1, min_bytes=2**31 - 1)))
            closed.shutdown(socket.SHUT_WR)
            self._outcome.hits += 1

    def _send_byte_by_byte(self, connection: socket.socket) -> Iterator[None]:
        return send_slowly(connection, _framed(_METADATA), self._every_s)

    def _send_half_a_request(self, connection: socket.socket) -> Iterator[None]:
        connection.sendall(struct.pack(">ih", 50 << 20, 0) + self._rng.randbytes(50_000))
        yield

    def _request_without_reading(self, connection: socket.socket) -> Iterator[None]:
        return send_without_reading(connection, _framed(_large_fetch()), self._unread)


class _Scraper(threading.Thread):
    """Scrapes like Prometheus, with one connection per scrape."""

    def __init__(self, port: int) -> None:
        super().__init__(name="scraper", daemon=True)
        self.scrapes = 0
        self.problems: list[str] = []
        self._port = port
        self._stop_wanted = threading.Event()

    def run(self) -> None:
        while not self._stop_wanted.is_set():
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                if answer.status != 200 or b"kafka_brokers 1" not in answer.read():
                    self.problems.append(f"a scrape returned status {answer.status}")
                connection.close()
            except OSError as error:
                self.problems.append(f"a scrape failed: {error!r}")
            self.scrapes += 1
            time.sleep(0.02)

    def finish(self) -> list[str]:
        self._stop_wanted.set()
        self.join(30)
        if not self.scrapes:
            self.problems.append("no scrape was made")
        return self.problems[:3]


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _large_fetch(wait_ms: int = 0, min_bytes: int = 0) -> bytes:
    body = int32(-1) + int32(wait_ms) + int32(min_bytes) + int32(2**31 - 1) + int8(0) + int32(0) + int32(-1)
    partition = int32(0) + int32(-1) + int64(0) + int64(-1) + int32(2**31 - 1)
    body += array([string(_TOPIC) + array([partition])]) + array([]) + string("")
    return int16(1) + int16(11) + int32(1) + string("slow") + body


def _count_closed(connections: list[socket.socket], deadline: float) -> int:
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.2):
                selector.unregister(key.fileobj)
        return len(connections) - len(selector.get_map())
