"""X14, broker gone, with flows at work: stopped for a while and woken, then killed and started again after a while.

Both times it goes while a batch of a flow is open, with its rows in the log and no commit. The driver, with its
followers, must not exit and must not grow; when the broker is back it goes on by itself. A stock reader of committed
records finds every row once and sums of all of them, and the views have the same rows.
"""

from __future__ import annotations

import random
import time

from bench.faults.flow_scene import Driver, Sales
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.workplace import workplace

__all__ = ["OUTAGE_S", "RSS_MB_MAX", "UNPROTECTED", "run"]

FAULT = "X14"
UNPROTECTED = {"healing": r"the driver has ended"}
OUTAGE_S = 60.0
RSS_MB_MAX = 64.0
_SETTLED_MB = 4.0
_ROUNDS_MAX = 10
_PATIENCE_S = 600.0


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "healing",
    outage_s: float = OUTAGE_S,
    weighed: bool = True,
) -> Outcome:
    """``weighed``: whether it is seen to that the driver does not grow, which takes many batches."""
    rng = random.Random(f"{FAULT} flow {seed}")
    outcome = Outcome(FAULT, seed)
    taken_out = [] if protected else ["--without", without]
    with workplace(FAULT, seed) as home, BrokerProcess(home, forked=True) as broker:
        broker.start()
        sales = Sales(broker.bootstrap, rng)
        sales.send(150)
        step = rng.choice(("begun", "sent", "told"))
        driver = Driver(
            broker.bootstrap, home, "--stay", "--follow", "--strike", "linger", step, "4", *taken_out
        )
        scene = _Scene(broker, driver, sales, rng, outcome)
        try:
            sales.until_derived(driver)
            base = 0.0
            if weighed:
                # What a JVM loads and compiles when it first loses its broker is no growth.
                scene.kill(0.0)
                outcome.hits = 0
                base = scene.settled_mb()
            for outage in (scene.pause, scene.kill):
                if driver.runs:
                    outage(outage_s)
            grown = sum(driver.rss_mb().values()) if weighed and driver.runs else base
            (home / "finish").touch()
            if driver.wait() != 0:
                outcome.problems.append(f"the driver did not finish:\n{driver.said()[-3000:]}")
            outcome.figures["grown by MB"] = grown - base
            if grown > base + RSS_MB_MAX:
                outcome.problems.append(f"the driver grew from {base:.0f} to {grown:.0f} MB")
        finally:
            driver.end()
            outcome.peak_rss_mb = driver.peak_rss_mb
        if protected or not outcome.problems:
            sales.judge(outcome, home / "sales.db" if protected else None)
        outcome.problems += broker.traces()
        broker.kill()
    return outcome


class _Scene:
    def __init__(
        self, broker: BrokerProcess, driver: Driver, sales: Sales, rng: random.Random, outcome: Outcome
    ) -> None:
        self._broker = broker
        self._driver = driver
        self._sales = sales
        self._rng = rng
        self._outcome = outcome

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

    def _note_hit(self) -> None:
        """The broker is gone: whether the batch is still open."""
        self._outcome.hits += self._driver.times("lingering") > self._driver.times("gone on")

    def settled_mb(self) -> float:
        """The memory of the driver, its JVM included, when another few batches make it no larger."""
        before: dict[str, float] = {}
        for _ in range(_ROUNDS_MAX):
            now = self._driver.rss_mb() if self._driver.runs else {}
            if all(megabytes < before.get(part, 0.0) + _SETTLED_MB for part, megabytes in now.items()):
                return sum(now.values())
            before = now
            self._go_on()
        return sum(before.values())

    def pause(self, outage_s: float) -> None:
        self._until_it_lingers()
        self._broker.pause()
        self._note_hit()
        time.sleep(outage_s)
        self._broker.resume()
        self._go_on()

    def kill(self, outage_s: float) -> None:
        self._until_it_lingers()
        self._broker.kill()
        self._note_hit()
        time.sleep(outage_s)
        self._broker.start()
        self._go_on()

    def _go_on(self) -> None:
        self._sales.send(self._rng.randint(20, 60))
        self._sales.until_derived(self._driver)
        if not self._driver.runs:
            self._outcome.problems.append(f"the driver has ended:\n{self._driver.said()[-3000:]}")
