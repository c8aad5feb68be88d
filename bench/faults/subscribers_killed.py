"""Everything is killed (SIGKILL) and started again while subscribers follow a view: the server, the follower, the log,
and all of them at once.

Subscribers come by WebSocket and by server-sent events, with and without a filter, and come again, with their last
cursor, whenever the connection ends. What must hold: every step begins where the one before has ended, so that each
sees every batch once; after each step it has exactly the rows that the batches up to it come to; there is one snapshot,
at the beginning; at the end it has the view's rows. Nobody loses a connection because the log or the follower is gone.
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

from bench.faults.flow_by_hand import Change, FlowByHand
from bench.faults.follower_process import FollowerProcess
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.serve_process import ServeProcess
from bench.faults.store_kinds import KINDS
from bench.faults.workplace import workplace
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from tests.serve.copying import Copy, Ended, Rows, events, socket

__all__ = ["UNPROTECTED", "run"]

FAULT = "subscribers"
UNPROTECTED = {"resuming": r"it has, and should have|had to begin anew"}
_NAME = "derived"
_APP = "tests.serve.derived:app"
_NAMES = ("product", "amount", "note")
_KEYS = 30
_BATCHES_BETWEEN = 6
_WAIT_S = 240.0
_PAUSE_S = 0.02
_QUESTIONS: list[tuple[str | None, Callable[[dict[str, Any]], bool]]] = [
    (None, lambda one: True),
    ("amount >= 50", lambda one: one["amount"] >= 50),
]


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "resuming",
    kills: Sequence[str] = (),
    subscribers: int = 8,
) -> Outcome:
    """``kills`` are of "server", "follower", "log" and "all"; otherwise each comes twice, in an order by the seed."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home / "log", forked=True) as broker,
    ):
        broker.start()
        writing = _Writing(broker.bootstrap, random.Random(rng.getrandbits(30)))
        world = _World(home / "app", broker, "" if protected else without)
        scene = _Scene(world, writing, rng, outcome)
        try:
            asyncio.run(scene.play(kills or _shuffled(rng), subscribers))
        finally:
            writing.stop()
            world.end()
        outcome.problems += writing.problems
        outcome.problems += [f"the server did not foresee:\n{one}" for one in world.server.faults()]
        outcome.problems += broker.traces()
        outcome.peak_rss_mb = max(outcome.peak_rss_mb, broker.peak_rss_mb)
    return outcome


def _shuffled(rng: random.Random) -> list[str]:
    found = ["all", "server", "log", "follower"] * 2
    rng.shuffle(found)
    return found


class _World:
    """What is killed."""

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

    def kill(self, what: str) -> None:
        if what in ("server", "all"):
            self.server.kill()
        if what in ("follower", "all"):
            self.follower.kill()
        if what in ("log", "all"):
            self.broker.kill()

    def start(self, what: str) -> None:
        if what in ("log", "all"):
            self.broker.start()
        if what in ("follower", "all"):
            self.follower = self._follow()
        if what in ("server", "all"):
            self.server.start()

    def end(self) -> None:
        self.server.kill()
        self.follower.kill()


class _Writing:
    """Batch after batch, in a thread of its own, through a log that comes and goes."""

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self._rng = rng
        self.flow = FlowByHand(Cluster(bootstrap, timeout_s=2.0), _NAME)
        self.flow.begin()
        self.flow.batch(self._some())
        self.problems: list[str] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def batches(self) -> int:
        return self.flow.batches

    def rows(self, batch: int, fits: Callable[[dict[str, Any]], bool]) -> Rows:
        made = [dict(zip(_NAMES, one, strict=True)) for one in self.flow.derived.states[batch + 1].values()]
        return {(one["product"],): one for one in made if fits(one)}

    def _some(self) -> list[Change]:
        found: list[Change] = []
        for _ in range(self._rng.randrange(8)):
            product = f"p{self._rng.randrange(_KEYS)}"
            row = {"product": product, "amount": self._rng.randrange(100), "note": None}
            found.append((product, None if self._rng.random() < 0.2 else row))
        return found

    def _write(self) -> None:
        while not self._done.wait(self._rng.uniform(0, 2 * _PAUSE_S)):
            changes = self._some()
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
                    self.problems.append(f"nothing can be written: {error}")
                    self._done.set()
                    return
                time.sleep(0.1)

    def stop(self) -> None:
        self._done.set()
        self._thread.join(_WAIT_S)


class _Subscriber:
    """Who follows, and comes again; ``ends`` counts how often it had to."""

    def __init__(self, number: int, writing: _Writing) -> None:
        self.carrier: Any = (socket, events)[number % 2]
        self.text, self.fits = _QUESTIONS[number // 2 % 2]
        self.copy = Copy(self._check)
        self.ends = 0
        self.told_ends: list[str] = []
        self._writing = writing
        self._unjudged: list[tuple[int, Rows]] = []
        self.wrong: list[str] = []

    @property
    def batch(self) -> int:
        return -1 if self.copy.position is None else int(self.copy.position["batch"])

    def _check(self, position: dict[str, Any], rows: Rows) -> None:
        self._unjudged.append((position["batch"], rows))
        self.judge()

    def judge(self) -> None:
        """A batch may be told before whoever wrote it has heard that it is there."""
        while self._unjudged and self._unjudged[0][0] < self._writing.batches:
            batch, rows = self._unjudged.pop(0)
            wanted = self._writing.rows(batch, self.fits)
            if rows != wanted:
                apart = {
                    key: (rows.get(key), wanted.get(key))
                    for key in {*rows, *wanted}
                    if rows.get(key) != wanted.get(key)
                }
                self.wrong.append(f"at batch {batch} it has, and should have: {apart}"[:500])

    async def follow(self, port: Callable[[], int]) -> None:
        while True:
            self.copy.connected()
            try:
                async with self.carrier(port(), _NAME, self.copy.cursor, filter=self.text) as (
                    first,
                    messages,
                ):
                    if first in (400, 409):
                        self.wrong.append(f"its cursor was refused with {first}")
                    if isinstance(first, int) and first != 200:
                        raise Ended(first)
                    async for told in messages:
                        self.copy.take(told)
            except (Ended, OSError, WebSocketException, EOFError, IndexError) as error:
                self.ends += 1
                self.told_ends.append(repr(error)[:200])
                await asyncio.sleep(0.05)


class _Scene:
    def __init__(self, world: _World, writing: _Writing, rng: random.Random, outcome: Outcome) -> None:
        self._world = world
        self._writing = writing
        self._rng = rng
        self._outcome = outcome
        self._all: list[_Subscriber] = []

    async def play(self, kills: Sequence[str], subscribers: int) -> None:
        self._all = [_Subscriber(number, self._writing) for number in range(subscribers)]
        following = [asyncio.create_task(one.follow(self._port)) for one in self._all]
        try:
            await self._caught_up(following)
            for what in kills:
                await self._strike(what)
                await self._caught_up(following)
            await asyncio.to_thread(self._writing.stop)
            await self._caught_up(following)
            # Before the loop ends: with it go its threads, and with each what it has started.
            await asyncio.to_thread(self._judge)
        finally:
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    def _port(self) -> int:
        return self._world.server.port

    async def _strike(self, what: str) -> None:
        before = self._writing.batches
        ends = sum(one.ends for one in self._all)
        await asyncio.sleep(self._rng.uniform(0, 0.1))
        await asyncio.to_thread(self._world.kill, what)
        # Who is alone goes on for a while.
        await asyncio.sleep(self._rng.uniform(0, 1.5 if what == "log" else 0.3))
        await asyncio.to_thread(self._world.start, what)
        deadline = time.monotonic() + _WAIT_S
        while self._writing.batches < before + _BATCHES_BETWEEN and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        ended = sum(one.ends for one in self._all) - ends
        if what in ("log", "follower") and ended:
            said = [one.told_ends[-1] for one in self._all if one.told_ends]
            self._object(f"{ended} connections ended when the {what} was killed: {said[:3]}")
        self._outcome.hits += 1

    async def _caught_up(self, following: list[asyncio.Task[None]]) -> None:
        goal = self._writing.batches - 1
        deadline = time.monotonic() + _WAIT_S
        while any(one.batch < goal for one in self._all):
            for task in following:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"batch {goal} was not told: {[(one.batch, one.told_ends[-1:]) for one in self._all]}"
                )
            await asyncio.sleep(0.01)

    def _judge(self) -> None:
        last = self._writing.batches - 1
        for one in self._all:
            one.judge()
            self._outcome.problems += one.wrong[:3]
            kinds = [kind for kind, _ in one.copy.seen]
            if one.batch != last or one.copy.rows != self._writing.rows(last, one.fits):
                self._outcome.lost += 1
                self._object(f"it ends at batch {one.batch} of {last}, with {one.copy.rows}")
            if "reset" in kinds or kinds.count("hello") != one.copy.resumed + 1:
                self._object(
                    f"it had to begin anew: {kinds.count('hello')} times, {one.copy.resumed} resumed"
                )
        self._outcome.figures["resumed"] = sum(one.copy.resumed for one in self._all)
        with KINDS["sqlite"].place(self._world.server.data) as seen, seen.watching(_NAME) as look:
            deadline = time.monotonic() + _WAIT_S
            wanted = self._writing.flow.derived.rows
            while (found := look()) is None or found[2] != wanted:
                if time.monotonic() > deadline:
                    said = [line[:200] for line in self._world.follower.lines[-4:]]
                    at = found and found[:2]
                    self._object(f"the view is at {at}, behind batch {last}, and its follower says {said}")
                    return
                time.sleep(0.02)

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)
