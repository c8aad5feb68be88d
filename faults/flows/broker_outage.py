"""Fault X14, a broker outage while all parts run: the broker is paused for a while and resumed, then killed and
restarted.

The driver runs two flows and the followers of their views. Beside it run a producer, a consumer, and a server with HTTP
readers and subscribers. Both outages begin while a batch of a flow is open: its rows are in the log but not committed.
What must hold:

    no part exits; readers get responses and subscribers stay connected, also during the outage
    no part grows by 64 MB; after the outage all parts resume by themselves
    all sales of the producer are acknowledged; a read-committed reader finds every row once, and the correct sums
    the views and every subscriber have the rows that derive from the sent sales; no subscriber misses a change
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from faults.flows.sales_clients import Client, RowReader, SaleProducer, SaleReader, Subscribers, SumReader
from faults.flows.scene import COLUMNS, Driver, Sales
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.serve.http import Http
from faults.servers.broker_process import BrokerProcess
from faults.servers.serve_process import ServeProcess
from faults.wait import until

__all__ = ["OUTAGE_S", "RSS_MB_MAX", "RUNS", "UNPROTECTED", "run"]

FAULT = "X14"
UNPROTECTED = {"healing": r"the driver has exited", "log-waits": r"the connection of a subscriber .* ended"}
OUTAGE_S = 60.0
RSS_MB_MAX = 64.0
ROUNDS = 5
RUNS = 10
"""The number of runs, each with ``ROUNDS`` rounds. Each round counts as one of the fault's cases."""
_OUTAGE_S_UNPROTECTED = {"healing": OUTAGE_S, "log-waits": 15.0}
_APP = "faults.flows.sales_app:app"
_FIRST_PAUSE_S = 5.0
_STABLE_MB = 4.0
_STABLE_ROUNDS = 3
_WARM_UP_ROUNDS_MIN = 15
_WARM_UP_ROUNDS_MAX = 40
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
    memory_checked: bool | None = None,
) -> Outcome:
    """Each round stops the broker once and kills it once. ``memory_checked``: also check that no part's memory grows,
    which takes many batches.
    """
    rng = random.Random(f"{FAULT} flow {seed}")
    outcome = Outcome(FAULT, seed, cases=rounds or (ROUNDS if protected else 1))
    if outage_s is None:
        outage_s = OUTAGE_S if protected else _OUTAGE_S_UNPROTECTED[without]
    protection = "" if protected else without
    with run_directory(FAULT, seed) as home, BrokerProcess(home / "log", forked=True) as broker:
        broker.start()
        scene = _Scene(home, broker, rng, outcome, protection)
        try:
            scene.begin()
            if protected if memory_checked is None else memory_checked:
                scene.measure_base_memory()
            for _ in range(outcome.cases):
                for outage in (scene.pause, scene.kill):
                    if scene.all_run:
                        outage(outage_s)
            scene.finish()
        finally:
            scene.end()
        scene.judge(home / "sales.db")
        outcome.problems += broker.unexpected_exceptions()
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
        step = rng.choice(("open", "sent", "recorded"))
        options = ["--without", without] if without == "healing" else []
        self._driver = Driver(
            broker.bootstrap, home, "--stay", "--follow", "--strike", "linger", step, "4", *options
        )
        settings = {"frame_ms": 50, "heartbeat_s": 5}
        server_protection = without if without == "log-waits" else ""
        self._server = ServeProcess(home, _APP, broker.bootstrap, settings, without=server_protection)
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
    def all_run(self) -> bool:
        """Whether both the driver and the server still run."""
        return self._driver.is_running and self._server.is_running

    def begin(self) -> None:
        """Start all parts, and wait until each has progressed."""
        self._sales.wait_until_derived(self._driver)
        self._server.start()
        http = Http(self._server.port)
        for view in COLUMNS:
            until(lambda view=view: http.get(f"/v1/views/{view}/rows").status == 200, f"{view} is served")  # type: ignore[misc]
        for client in self._clients:
            client.start()
        self._wait_for_clients([0] * len(self._clients))

    def measure_base_memory(self) -> None:
        """Measure the base memory after a first outage of each kind, because a part imports some modules only then, and
        after so many batches that the JVM has compiled the code of a batch, which takes memory outside its heap.
        """
        self.pause(_FIRST_PAUSE_S)
        self.kill(0.0)
        self._outcome.hits = 0
        base_mb: dict[str, float] = {}
        stable_rounds = 0
        for number in range(_WARM_UP_ROUNDS_MAX):
            if stable_rounds == _STABLE_ROUNDS and number >= _WARM_UP_ROUNDS_MIN:
                break
            self._derive_more_sales()
            current_mb = self._rss_mb() if self.all_run else {}
            is_stable = all(
                megabytes < base_mb.get(part, 0.0) + _STABLE_MB for part, megabytes in current_mb.items()
            )
            stable_rounds = stable_rounds + 1 if is_stable else 0
            base_mb = {part: max(megabytes, base_mb.get(part, 0.0)) for part, megabytes in current_mb.items()}
        self._base_mb = base_mb

    def _rss_mb(self) -> dict[str, float]:
        memory_mb = {"driver": sum(self._driver.rss_mb().values()), "server": self._server.rss_mb()}
        return memory_mb | ({"broker": self._broker.rss_mb()} if self._broker.is_running else {})

    def _check_growth(self) -> None:
        if not self._base_mb or not self.all_run:
            return
        for part, megabytes in self._rss_mb().items():
            base = self._base_mb[part]
            name = f"{part} growth, MB"
            self._outcome.figures[name] = max(self._outcome.figures.get(name, 0.0), megabytes - base)
            if megabytes > base + RSS_MB_MAX:
                self._outcome.problems.append(f"the {part} grew from {base:.0f} to {megabytes:.0f} MB")

    # Outages

    def pause(self, outage_s: float) -> None:
        self._run_outage(self._broker.pause, self._broker.resume, outage_s)

    def kill(self, outage_s: float) -> None:
        self._run_outage(self._broker.kill, self._broker.start, outage_s)

    def _run_outage(
        self, begin_outage: Callable[[], None], end_outage: Callable[[], None], outage_s: float
    ) -> None:
        producer = SaleProducer(self._broker.bootstrap, self._sales, _SALE_S)
        producer.start()
        try:
            self._wait_until_lingering()
            begin_outage()
            self._outcome.hits += self._driver.count("lingering") > self._driver.count("resumed")
            time.sleep(outage_s)
            self._check_growth()
        finally:
            end_outage()
            producer.finish()
            self._outcome.problems += producer.problems
        self._derive_more_sales()
        self._check_growth()

    def _wait_until_lingering(self) -> None:
        """Send sales until a batch is open."""
        before, deadline = self._driver.count("lingering"), time.monotonic() + _PATIENCE_S
        sent_at = 0.0
        while self._driver.is_running and self._driver.count("lingering") == before:
            assert time.monotonic() < deadline, f"no batch has begun:\n{self._driver.output()[-3000:]}"
            if time.monotonic() > sent_at + 0.5:
                self._sales.send(self._rng.randint(20, 60))
                sent_at = time.monotonic()
            time.sleep(0.005)

    def _derive_more_sales(self) -> None:
        done = [client.done for client in self._clients]
        self._sales.send(self._rng.randint(20, 60))
        self._sales.wait_until_derived(self._driver)
        if not self._driver.is_running:
            self._outcome.problems.append(f"the driver has exited:\n{self._driver.output()[-3000:]}")
        elif not self._server.is_running:
            self._outcome.problems.append("the server has exited")
        else:
            self._wait_for_clients(done)

    def _wait_for_clients(self, done_before: list[int]) -> None:
        """Wait until each client has completed more operations than in ``done_before``."""
        deadline = time.monotonic() + _PATIENCE_S
        for client, before in zip(self._clients, done_before, strict=True):
            while client.is_alive() and client.done <= before:
                if time.monotonic() > deadline:
                    self._outcome.problems.append(f"{client.name} makes no progress")
                    return
                time.sleep(0.02)

    # End of the run

    def finish(self) -> None:
        (self._home / "finish").touch()
        if self._driver.wait() != 0:
            self._outcome.problems.append(f"the driver did not finish:\n{self._driver.output()[-3000:]}")
            return
        self._is_derived = True
        self._subscribers.wait_for(self._sales)
        self._reader.wait_for(self._sales)

    def end(self) -> None:
        for client in self._clients:
            client.finish()
        self._server.kill()
        self._driver.kill()
        self._outcome.peak_rss_mb = self._driver.peak_rss_mb

    def judge(self, store: Path) -> None:
        """Check the results after the clients have finished. If the driver exited early, do not also report its missing
        rows.
        """
        if self._is_derived:
            self._sales.judge(self._outcome, store)
        for client in self._clients:
            self._outcome.problems += client.problems[:3]
        self._outcome.problems += [
            f"the server logged an unexpected exception:\n{exception}"
            for exception in self._server.unexpected_exceptions()
        ]
