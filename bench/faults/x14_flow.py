"""X14, broker gone, with all parts at work: stopped for a while and woken, then killed and started again after a while.

Beside the driver, with two flows and the followers of their views, there are a producer, a consumer, and a server over
HTTP with readers and subscribers. Both times the broker goes while a batch of a flow is open, with its rows in the log
and no commit. What must hold:

    no part ends; readers are answered and subscribers stay connected also while the broker is gone
    no part grows by 64 MB; when the broker is back all go on by themselves
    the producer's sales are all acknowledged; a stock reader of committed records finds every row once, and sums of all
    the views have the rows that follow from what was sent, and so has every subscriber, without a step left out
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from bench.faults.flow_scene import COLUMNS, Driver, Sales
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.sales_clients import Client, RowReader, SaleProducer, SaleReader, Subscribers, SumReader
from bench.faults.serve_process import ServeProcess
from bench.faults.workplace import workplace
from tests.serve.http import Http
from tests.support.waiting import until

__all__ = ["OUTAGE_S", "RSS_MB_MAX", "RUNS", "UNPROTECTED", "run"]

FAULT = "X14"
UNPROTECTED = {"healing": r"the driver has ended", "log-waits": r"the connection of a subscriber .* ended"}
OUTAGE_S = 60.0
RSS_MB_MAX = 64.0
ROUNDS = 5
RUNS = 10
"""Of so many rounds each."""
_OUTAGE_S_UNPROTECTED = {"healing": OUTAGE_S, "log-waits": 15.0}
_APP = "bench.faults.sales_app:app"
_SETTLED_MB = 4.0
_SETTLING_MAX = 10
_PATIENCE_S = 600.0
_SALE_S = 0.4
_READ_S = 0.5


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "healing",
    outage_s: float | None = None,
    rounds: int | None = None,
    weighed: bool | None = None,
) -> Outcome:
    """In each round the broker is stopped once and killed once. ``weighed``: whether the parts are seen not to grow,
    which takes many batches.
    """
    rng = random.Random(f"{FAULT} flow {seed}")
    outcome = Outcome(FAULT, seed, cases=rounds or (ROUNDS if protected else 1))
    if outage_s is None:
        outage_s = OUTAGE_S if protected else _OUTAGE_S_UNPROTECTED[without]
    left_out = "" if protected else without
    with workplace(FAULT, seed) as home, BrokerProcess(home / "log", forked=True) as broker:
        broker.start()
        scene = _Scene(home, broker, rng, outcome, left_out)
        try:
            scene.begin()
            if protected if weighed is None else weighed:
                scene.weigh()
            for _ in range(outcome.cases):
                for outage in (scene.pause, scene.kill):
                    if scene.is_whole:
                        outage(outage_s)
            scene.finish()
        finally:
            scene.end()
        scene.judge(home / "sales.db")
        outcome.problems += broker.traces()
        broker.kill()
    return outcome


class _Scene:
    def __init__(
        self, home: Path, broker: BrokerProcess, rng: random.Random, outcome: Outcome, without: str
    ) -> None:
        self._home = home
        self._broker = broker
        self._rng = rng
        self._outcome = outcome
        self._sales = Sales(broker.bootstrap, rng)
        self._sales.send(150)
        step = rng.choice(("begun", "sent", "told"))
        words = ["--without", without] if without == "healing" else []
        self._driver = Driver(
            broker.bootstrap, home, "--stay", "--follow", "--strike", "linger", step, "4", *words
        )
        settings = {"frame_ms": 50, "heartbeat_s": 5}
        kept_out = without if without == "log-waits" else ""
        self._server = ServeProcess(home, _APP, broker.bootstrap, settings, without=kept_out)
        self._subscribers = Subscribers(self._port)
        self._reader = SaleReader(broker.port)
        self._clients: list[Client] = [
            self._subscribers,
            self._reader,
            SumReader(self._port, _READ_S),
            RowReader(self._port, _READ_S),
        ]
        self._base_mb: dict[str, float] = {}
        self._is_derived = False

    def _port(self) -> int:
        return self._server.port

    @property
    def is_whole(self) -> bool:
        """Whether the driver and the server still run."""
        return self._driver.runs and self._server.runs

    def begin(self) -> None:
        """All parts run, and have something to do."""
        self._sales.until_derived(self._driver)
        self._server.start()
        http = Http(self._server.port)
        for view in COLUMNS:
            until(lambda view=view: http.get(f"/v1/views/{view}/rows").status == 200, f"{view} is served")  # type: ignore[misc]
        for client in self._clients:
            client.start()
        self._wait_for_clients([0] * len(self._clients))

    def weigh(self) -> None:
        """What a part loads when it first loses its broker is no growth."""
        self.kill(0.0)
        self._outcome.hits = 0
        now: dict[str, float] = {}
        for _ in range(_SETTLING_MAX):
            before, now = now, self._rss_mb() if self.is_whole else {}
            if all(megabytes < before.get(part, 0.0) + _SETTLED_MB for part, megabytes in now.items()):
                break
            self._go_on()
        self._base_mb = now

    def _rss_mb(self) -> dict[str, float]:
        found = {"driver": sum(self._driver.rss_mb().values()), "server": self._server.rss_mb()}
        return found | ({"broker": self._broker.rss_mb()} if self._broker.runs else {})

    def _note_growth(self) -> None:
        if not self._base_mb or not self.is_whole:
            return
        for part, megabytes in self._rss_mb().items():
            base = self._base_mb[part]
            name = f"{part} grown by MB"
            self._outcome.figures[name] = max(self._outcome.figures.get(name, 0.0), megabytes - base)
            if megabytes > base + RSS_MB_MAX:
                self._outcome.problems.append(f"the {part} grew from {base:.0f} to {megabytes:.0f} MB")

    # Outages

    def pause(self, outage_s: float) -> None:
        self._lose(self._broker.pause, self._broker.resume, outage_s)

    def kill(self, outage_s: float) -> None:
        self._lose(self._broker.kill, self._broker.start, outage_s)

    def _lose(self, go: Callable[[], None], come: Callable[[], None], outage_s: float) -> None:
        producer = SaleProducer(self._broker.bootstrap, self._sales, _SALE_S)
        producer.start()
        try:
            self._until_it_lingers()
            go()
            self._outcome.hits += self._driver.times("lingering") > self._driver.times("gone on")
            time.sleep(outage_s)
            self._note_growth()
        finally:
            come()
            producer.finish()
            self._outcome.problems += producer.problems
        self._go_on()
        self._note_growth()

    def _until_it_lingers(self) -> None:
        """Send until a batch is open."""
        before, deadline = self._driver.times("lingering"), time.monotonic() + _PATIENCE_S
        sent_at = 0.0
        while self._driver.runs and self._driver.times("lingering") == before:
            assert time.monotonic() < deadline, f"no batch begins:\n{self._driver.said()[-3000:]}"
            if time.monotonic() > sent_at + 0.5:
                self._sales.send(self._rng.randint(20, 60))
                sent_at = time.monotonic()
            time.sleep(0.005)

    def _go_on(self) -> None:
        done = [client.done for client in self._clients]
        self._sales.send(self._rng.randint(20, 60))
        self._sales.until_derived(self._driver)
        if not self._driver.runs:
            self._outcome.problems.append(f"the driver has ended:\n{self._driver.said()[-3000:]}")
        elif not self._server.runs:
            self._outcome.problems.append("the server has ended")
        else:
            self._wait_for_clients(done)

    def _wait_for_clients(self, done: list[int]) -> None:
        """Until each of them was given more than that."""
        deadline = time.monotonic() + _PATIENCE_S
        for client, before in zip(self._clients, done, strict=True):
            while client.is_alive() and client.done <= before:
                if time.monotonic() > deadline:
                    self._outcome.problems.append(f"{client.name} gets nothing")
                    return
                time.sleep(0.02)

    # The end

    def finish(self) -> None:
        (self._home / "finish").touch()
        if self._driver.wait() != 0:
            self._outcome.problems.append(f"the driver did not finish:\n{self._driver.said()[-3000:]}")
            return
        self._is_derived = True
        self._subscribers.wait_for(self._sales)
        self._reader.wait_for(self._sales)

    def end(self) -> None:
        for client in self._clients:
            client.finish()
        self._server.kill()
        self._driver.end()
        self._outcome.peak_rss_mb = self._driver.peak_rss_mb

    def judge(self, store: Path) -> None:
        """Once the clients have finished. A driver that has ended leaves work undone, which is no other finding."""
        if self._is_derived:
            self._sales.judge(self._outcome, store)
        for client in self._clients:
            self._outcome.problems += client.problems[:3]
        self._outcome.problems += [f"the server did not foresee:\n{one}" for one in self._server.faults()]
