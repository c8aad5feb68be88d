"""The server, the follower, the log, or all at once are killed with SIGKILL and restarted while subscribers follow a
view.

Subscribers connect by WebSocket and by server-sent events, with and without a filter. They reconnect with their last
cursor whenever the connection closes. A *step* is the set of changes that a subscriber receives at once. What must
hold:

    every step begins where the previous step ended, so that each subscriber sees every batch once
    after each step a subscriber has exactly the rows of all batches up to the end of this step
    a subscriber receives one snapshot, at the beginning, and at the end has the view's rows
    no subscriber is disconnected because the log or the follower was killed
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from websockets.exceptions import WebSocketException

from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.serve.subscriber_copy import Copy, Ended, Rows, events, socket
from faults.servers.broker_process import BrokerProcess
from faults.servers.serve_process import ServeProcess
from faults.stores.registry import store_faults
from faults.views.follower_process import FollowerProcess
from faults.views.scripted_flow import Change, ScriptedFlow
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError

__all__ = ["UNPROTECTED", "run"]

FAULT = "subscribers"
UNPROTECTED = {"resuming": r"has wrong rows|had to start over"}
_NAME = "derived"
_APP = "faults.serve.derived_app:app"
_NAMES = ("product", "amount", "note")
_KEYS = 30
_BATCHES_BETWEEN = 6
_WAIT_S = 240.0
_PAUSE_S = 0.02
_QUERIES: list[tuple[str | None, Callable[[dict[str, Any]], bool]]] = [
    (None, lambda row: True),
    ("amount >= 50", lambda row: row["amount"] >= 50),
]


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "resuming",
    kills: Sequence[str] = (),
    subscribers: int = 8,
) -> Outcome:
    """``kills`` contains "server", "follower", "log" and "all". By default each occurs twice, in an order that the seed
    chooses.
    """
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home / "log", forked=True) as broker,
    ):
        broker.start()
        writer = _BatchWriter(broker.bootstrap, random.Random(rng.getrandbits(30)))
        world = _World(home / "app", broker, "" if protected else without)
        scene = _Scene(world, writer, rng, outcome)
        try:
            asyncio.run(scene.play(kills or _shuffled(rng), subscribers))
        finally:
            writer.stop()
            world.end()
        outcome.problems += writer.problems
        outcome.problems += [
            f"the server logged an unexpected exception:\n{fault}"
            for fault in world.server.unexpected_exceptions()
        ]
        outcome.problems += broker.unexpected_exceptions()
        outcome.peak_rss_mb = max(outcome.peak_rss_mb, broker.peak_rss_mb)
    return outcome


def _shuffled(rng: random.Random) -> list[str]:
    targets = ["all", "server", "log", "follower"] * 2
    rng.shuffle(targets)
    return targets


class _World:
    """The processes that the run kills."""

    def __init__(self, home: Path, broker: BrokerProcess, without: str) -> None:
        self.broker = broker
        self._address = str(home / "shop.db")
        settings = {"frame_ms": 5, "heartbeat_s": 1}
        self.server = ServeProcess(home, _APP, broker.bootstrap, settings, without=without)
        self.follower = self._follow()
        self.follower.wait_for("applied", 0)
        self.server.start()

    def _follow(self) -> FollowerProcess:
        return FollowerProcess(self.broker.bootstrap, "sqlite", self._address, _NAME)

    def kill(self, target: str) -> None:
        if target in ("server", "all"):
            self.server.kill()
        if target in ("follower", "all"):
            self.follower.kill()
        if target in ("log", "all"):
            self.broker.kill()

    def start(self, target: str) -> None:
        if target in ("log", "all"):
            self.broker.start()
        if target in ("follower", "all"):
            self.follower = self._follow()
        if target in ("server", "all"):
            self.server.start()

    def end(self) -> None:
        self.server.kill()
        self.follower.kill()


class _BatchWriter:
    """Writes one batch after another in a thread, and continues after outages of the log."""

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self._rng = rng
        self.flow = ScriptedFlow(Cluster(bootstrap, timeout_s=2.0), _NAME)
        self.flow.begin()
        self.flow.batch(self._random_changes())
        self.problems: list[str] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def batches(self) -> int:
        return self.flow.batches

    def rows(self, batch: int, matches: Callable[[dict[str, Any]], bool]) -> Rows:
        rows = [
            dict(zip(_NAMES, state, strict=True)) for state in self.flow.derived.states[batch + 1].values()
        ]
        return {(row["product"],): row for row in rows if matches(row)}

    def _random_changes(self) -> list[Change]:
        changes: list[Change] = []
        for _ in range(self._rng.randrange(8)):
            product = f"p{self._rng.randrange(_KEYS)}"
            row = {"product": product, "amount": self._rng.randrange(100), "note": None}
            changes.append((product, None if self._rng.random() < 0.2 else row))
        return changes

    def _write(self) -> None:
        while not self._done.wait(self._rng.uniform(0, 2 * _PAUSE_S)):
            changes = self._random_changes()
            try:
                self.flow.batch(changes)
            except (KafkaException, HeadraceError, AssertionError):
                self._settle(changes)

    def _settle(self, changes: list[Change]) -> None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                self.flow.settle(changes)
                return
            except (KafkaException, HeadraceError) as error:
                if time.monotonic() > deadline:
                    self.problems.append(f"no batch can be written: {error}")
                    self._done.set()
                    return
                time.sleep(0.1)

    def stop(self) -> None:
        self._done.set()
        self._thread.join(_WAIT_S)


class _Subscriber:
    """A subscriber that reconnects. ``ends`` counts how often its connection closed."""

    def __init__(self, number: int, writer: _BatchWriter) -> None:
        self.transport: Any = (socket, events)[number % 2]
        self.text, self.matches = _QUERIES[number // 2 % 2]
        self.copy = Copy(self._check)
        self.ends = 0
        self.end_reasons: list[str] = []
        self._writer = writer
        self._unjudged: list[tuple[int, Rows]] = []
        self.problems: list[str] = []

    @property
    def batch(self) -> int:
        return -1 if self.copy.position is None else int(self.copy.position["batch"])

    def _check(self, position: dict[str, Any], rows: Rows) -> None:
        self._unjudged.append((position["batch"], rows))
        self.judge()

    def judge(self) -> None:
        """Check the rows after each batch whose writer got a response; a batch can be visible before that."""
        while self._unjudged and self._unjudged[0][0] < self._writer.batches:
            batch, rows = self._unjudged.pop(0)
            expected = self._writer.rows(batch, self.matches)
            if rows != expected:
                differing = {
                    key: (rows.get(key), expected.get(key))
                    for key in {*rows, *expected}
                    if rows.get(key) != expected.get(key)
                }
                self.problems.append(
                    f"at batch {batch} a subscriber has wrong rows (found, expected): {differing}"[:500]
                )

    async def follow(self, port: Callable[[], int]) -> None:
        while True:
            self.copy.connected()
            try:
                async with self.transport(port(), _NAME, self.copy.cursor, filter=self.text) as (
                    first,
                    messages,
                ):
                    if first in (400, 409):
                        self.problems.append(f"the cursor of a subscriber was refused with {first}")
                    if isinstance(first, int) and first != 200:
                        raise Ended(first)
                    async for message in messages:
                        self.copy.take(message)
            except (Ended, OSError, WebSocketException, EOFError, IndexError) as error:
                self.ends += 1
                self.end_reasons.append(repr(error)[:200])
                await asyncio.sleep(0.05)


class _Scene:
    def __init__(self, world: _World, writer: _BatchWriter, rng: random.Random, outcome: Outcome) -> None:
        self._world = world
        self._writer = writer
        self._rng = rng
        self._outcome = outcome
        self._all: list[_Subscriber] = []

    async def play(self, kills: Sequence[str], subscribers: int) -> None:
        self._all = [_Subscriber(number, self._writer) for number in range(subscribers)]
        following = [asyncio.create_task(subscriber.follow(self._port)) for subscriber in self._all]
        try:
            await self._wait_until_caught_up(following)
            for target in kills:
                await self._kill_and_restart(target)
                await self._wait_until_caught_up(following)
            await asyncio.to_thread(self._writer.stop)
            await self._wait_until_caught_up(following)
            # Judge before the event loop closes: its threads end then, and a child process dies with the thread that
            # started it.
            await asyncio.to_thread(self._judge)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def _port(self) -> int:
        return self._world.server.port

    async def _kill_and_restart(self, target: str) -> None:
        before = self._writer.batches
        ends = sum(subscriber.ends for subscriber in self._all)
        await asyncio.sleep(self._rng.uniform(0, 0.1))
        await asyncio.to_thread(self._world.kill, target)
        # Let the subscribers run on for a while without the killed process.
        await asyncio.sleep(self._rng.uniform(0, 1.5 if target == "log" else 0.3))
        await asyncio.to_thread(self._world.start, target)
        deadline = time.monotonic() + _WAIT_S
        while self._writer.batches < before + _BATCHES_BETWEEN and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        ended = sum(subscriber.ends for subscriber in self._all) - ends
        if target in ("log", "follower") and ended:
            reasons = [subscriber.end_reasons[-1] for subscriber in self._all if subscriber.end_reasons]
            self._report_problem(f"{ended} connections closed when the {target} was killed: {reasons[:3]}")
        self._outcome.hits += 1

    async def _wait_until_caught_up(self, following: list[asyncio.Task[None]]) -> None:
        last_batch = self._writer.batches - 1
        deadline = time.monotonic() + _WAIT_S
        while any(subscriber.batch < last_batch for subscriber in self._all):
            for task in following:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                reached = [(subscriber.batch, subscriber.end_reasons[-1:]) for subscriber in self._all]
                raise AssertionError(f"batch {last_batch} did not reach every subscriber: {reached}")
            await asyncio.sleep(0.01)

    def _judge(self) -> None:
        last = self._writer.batches - 1
        for subscriber in self._all:
            subscriber.judge()
            self._outcome.problems += subscriber.problems[:3]
            kinds = [kind for kind, _ in subscriber.copy.seen]
            if subscriber.batch != last or subscriber.copy.rows != self._writer.rows(
                last, subscriber.matches
            ):
                self._outcome.lost += 1
                self._report_problem(
                    f"a subscriber ends at batch {subscriber.batch} of {last}, with {subscriber.copy.rows}"
                )
            if "reset" in kinds or kinds.count("hello") != subscriber.copy.resumed + 1:
                self._report_problem(
                    f"a subscriber had to start over: {kinds.count('hello')} times, {subscriber.copy.resumed} resumed"
                )
        self._outcome.figures["resumed"] = sum(subscriber.copy.resumed for subscriber in self._all)
        with (
            store_faults("sqlite").create(self._world.server.data) as store,
            store.open_snapshot_reader(_NAME) as read,
        ):
            deadline = time.monotonic() + _WAIT_S
            expected = self._writer.flow.derived.rows
            while (snapshot := read()) is None or snapshot[2] != expected:
                if time.monotonic() > deadline:
                    last_lines = [line[:200] for line in self._world.follower.lines[-4:]]
                    position = snapshot and snapshot[:2]
                    self._report_problem(
                        f"the view is at {position} instead of batch {last}; its follower printed {last_lines}"
                    )
                    return
                time.sleep(0.02)

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)
