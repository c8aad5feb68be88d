"""X22, slow and many: thousands that do nothing, and some that take all the time there is.

Five thousand connections are opened and left. Beside them are clients that send a byte every ten seconds, that send
half of a request and no more, that ask for much and never read, that close their half and stay, and that vanish without
a packet; the port for metrics has as many of its own as it serves at once, and more. What must hold: a good client's
thousand requests are all answered, and every scrape; each slow one is closed at the deadline, and each idle one when it
has been idle for long enough; an open connection costs less than 64 KB; answers that nobody reads cost a bounded
amount; and afterwards the broker has the descriptors that it had before.
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

from bench.faults import calls
from bench.faults.batches import build_batch
from bench.faults.bystander import Bystander
from bench.faults.codec import array, int8, int16, int32, int64, string
from bench.faults.connection import Connection
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.slow_clients import (
    SlowClient,
    allow_files,
    connect,
    never_reading,
    open_files,
    trickling,
    vanish,
    wait_until_let_go,
)
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "run"]

FAULT = "X22"
UNPROTECTED = {
    "sweep": r"_(trickle|half_a_request): not closed",
    "answer-limit": r"read nothing cost",
    "scrape-room": r"a scrape failed",
}

_SLOW_S = 12.0
_EVERY_S = 10.0
_IDLE_S = 40.0
_SLACK_S = 20.0
_METRICS_S = 5.0
_KB_EACH_MAX = 64
_MANY = 5_000
_ANSWERS_MB_MAX = 64
_GOOD_REQUESTS = 1000
_TOPIC = "large"
_UNREAD = 40
"""Answers that each of those asks for who read nothing."""
_SLOW_SCRAPES = 40
_SCRAPE = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 2_000
_METADATA = int16(3) + int16(1) + int32(1) + string("trickle" * 100) + array([])


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "sweep",
    idle: int = _MANY,
    slow: int = 40,
    slow_s: float = _SLOW_S,
    every_s: float = _EVERY_S,
    idle_s: float = _IDLE_S,
) -> Outcome:
    """``every_s`` is between two bytes of a slow client, ``slow_s`` what it has for all of them."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    if not protected:
        idle, slow, slow_s, every_s, idle_s = 200, 9, 1.5, 1.2, 6.0
    options = ["--metrics", "127.0.0.1:0"]
    for name, value in (
        ("headrace.slow.client.timeout.ms", int(slow_s * 1000)),
        ("connections.max.idle.ms", int(idle_s * 1000)),
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
            scene = _Scene(broker, rng, outcome, slow_s, every_s, idle_s)
            if not protected:
                # It is caught soon enough, and this machine shall bear it.
                scene.hurry()
            scene.play(idle, slow)
            broker.expect_alive()
        except BrokerDied as died:
            outcome.problems.append(str(died))
        outcome.problems += [f"the broker did not foresee:\n{trace}" for trace in broker.traces()]
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

    def hurry(self) -> None:
        self._slack_s, self._unread = 3.0, _UNREAD // 4

    def play(self, idle: int, slow: int) -> None:
        outcome, broker = self._outcome, self._broker
        self._fill()
        bystander = Bystander(broker.port)
        bystander.prepare()
        time.sleep(0.2)
        files, rss_mb = open_files(broker.pid), broker.rss_mb()
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(connect(broker.port, 0)) for _ in range(idle)]
            outcome.hits += idle
            idle_since = time.monotonic()
            self._expect_answers()
            each_kb = (broker.rss_mb() - rss_mb) * 1024 / idle
            outcome.figures["kb_each"] = each_kb
            if each_kb > _KB_EACH_MAX:
                outcome.problems.append(f"{idle} idle connections cost {each_kb:.0f} KB each")
            bystander.start()
            scraper = _Scraper(self._metrics_port)
            scraper.start()
            before_mb = broker.rss_mb("VmHWM")
            self._attack(stack, slow)
            outcome.problems += scraper.finish()
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
            bystander.wait_for(_GOOD_REQUESTS)
            outcome.problems += bystander.finish()
            outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
            closed = _wait_closed(opened, idle_since + self._idle_s + _SLACK_S)
            if closed < idle:
                outcome.problems.append(f"{idle - closed} of {idle} idle connections were not closed")
        deadline = time.monotonic() + 10
        while (now := open_files(broker.pid)) > files and time.monotonic() < deadline:
            time.sleep(0.05)
        if now > files:
            outcome.problems.append(f"the broker has {now} open files, and had {files} before")

    @property
    def _metrics_port(self) -> int:
        found = re.search(rb"metrics are at http://127\.0\.0\.1:(\d+)/", self._broker.said())
        assert found is not None
        return int(found[1])

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
        kinds = (self._trickle, self._half_a_request, self._never_read)
        clients = []
        for number in range(slow):
            kind = kinds[number % len(kinds)]
            clients.append(self._client(stack, kind.__name__, self._broker.port, kind))
        for name, raw in (("trickled scrape", b""), ("scrape in part", b"GET /metrics HTTP/1.1\r\n")):
            for _ in range(_SLOW_SCRAPES):
                clients.append(
                    self._client(
                        stack,
                        name,
                        self._metrics_port,
                        lambda connection, raw=raw: trickling(connection, _SCRAPE, self._every_s, raw),
                        deadline_s=_METRICS_S,
                        # A scrape that is whole may need the room.
                        may_be_early=True,
                    )
                )
        for port, begin in ((self._broker.port, _framed(_METADATA)[:20]), (self._metrics_port, b"GET /me")):
            self._half_gone(stack, port, begin)
        self._outcome.hits += len(clients)
        self._outcome.problems += wait_until_let_go(clients, self._slack_s)

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
        early = may_be_early or name == "_never_read"
        return SlowClient(name, connection, steps(connection), deadline_s or self._slow_s, may_be_early=early)

    def _half_gone(self, stack: contextlib.ExitStack, port: int, begin: bytes) -> None:
        """Half closed and half open ones: that the broker has let go of them shows in its open files, at the end. What
        fits into the kernel's buffers is the kernel's to deliver.
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
        # Where there is no room it is closed already.
        with contextlib.suppress(OSError):
            closed.sendall(_framed(_fetch_much(wait_ms=2**31 - 1, least=2**31 - 1)))
            closed.shutdown(socket.SHUT_WR)
            self._outcome.hits += 1

    def _trickle(self, connection: socket.socket) -> Iterator[None]:
        return trickling(connection, _framed(_METADATA), self._every_s)

    def _half_a_request(self, connection: socket.socket) -> Iterator[None]:
        connection.sendall(struct.pack(">ih", 50 << 20, 0) + self._rng.randbytes(50_000))
        yield

    def _never_read(self, connection: socket.socket) -> Iterator[None]:
        return never_reading(connection, _framed(_fetch_much()), self._unread)


class _Scraper(threading.Thread):
    """Prometheus: a scrape is a connection of its own."""

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
                    self.problems.append(f"a scrape was answered with {answer.status}")
                connection.close()
            except OSError as error:
                self.problems.append(f"a scrape failed: {error!r}")
            self.scrapes += 1
            time.sleep(0.02)

    def finish(self) -> list[str]:
        self._stop_wanted.set()
        self.join(30)
        if not self.scrapes:
            self.problems.append("nobody could scrape")
        return self.problems[:3]


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _fetch_much(wait_ms: int = 0, least: int = 0) -> bytes:
    body = int32(-1) + int32(wait_ms) + int32(least) + int32(2**31 - 1) + int8(0) + int32(0) + int32(-1)
    wanted = int32(0) + int32(-1) + int64(0) + int64(-1) + int32(2**31 - 1)
    body += array([string(_TOPIC) + array([wanted])]) + array([]) + string("")
    return int16(1) + int16(11) + int32(1) + string("slow") + body


def _wait_closed(connections: list[socket.socket], deadline: float) -> int:
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.2):
                selector.unregister(key.fileobj)
        return len(connections) - len(selector.get_map())
