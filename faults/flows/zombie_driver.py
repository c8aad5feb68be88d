"""Fault X13, a zombie driver of flows: it is paused (SIGSTOP) in the middle of a batch, a successor takes over and
processes all input, and then the old driver is resumed. One seed in ten uses Apache Kafka.

When the driver is paused, the rows of its batch are in the log, and for some seeds the progress record too, but it has
not committed. When it resumes, it must be fenced. No read-committed reader may see a row of its batch, and no such row
may be in the store of the successor's follower.
"""

from __future__ import annotations

import random

from faults.flows.scene import Driver, Sales
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.log_server import log_server

__all__ = ["UNPROTECTED", "run"]

FAULT = "X13"
UNPROTECTED = {"transaction": r"^\d+ duplicated$"}


def run(seed: int, *, protected: bool = True, without: str = "transaction") -> Outcome:
    rng = random.Random(f"{FAULT} flow {seed}")
    outcome = Outcome(FAULT, seed)
    options = [] if protected else ["--without", without]
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        sales = Sales(bootstrap, rng)
        sales.send(80)
        step = ("sent", "recorded")[seed % 2]
        zombie = Driver(bootstrap, home, "--strike", "stop", step, str(rng.randint(3, 5)), *options)
        successor = None
        try:
            if zombie.wait_for("striking"):
                outcome.hits += 1
            successor = Driver(bootstrap, home, "--stay", "--follow", *options)
            sales.wait_until_derived(successor)
            sales.send(rng.randint(1, 20))
            zombie.resume()
            zombie.wait()
            if protected and "fenced" not in zombie.output():
                outcome.problems.append(f"the zombie was not fenced:\n{zombie.output()[-3000:]}")
            sales.send(rng.randint(1, 20))
            (home / "finish").touch()
            if successor.wait() != 0:
                outcome.problems.append(f"the successor did not finish:\n{successor.output()[-3000:]}")
        finally:
            for driver in (zombie, successor):
                if driver is not None:
                    driver.kill()
                    outcome.peak_rss_mb = max(outcome.peak_rss_mb, driver.peak_rss_mb)
        sales.judge(outcome, home / "sales.db" if protected else None)
    return outcome
