"""Fault X6, the driver of flows is killed inside a batch: when its transaction is open, when its rows are in the log,
when its progress record is too, or after the commit and before Spark has recorded the batch.

The processes are real: a broker (Apache Kafka for one seed in ten), and a driver with Spark and followers that kills
itself with SIGKILL at a step. Then another driver processes the rest of the input. A read-committed stock reader must
find every row once, the correct sums over all rows, and no gap between the offset ranges of the batches. SQLite must
have the same rows. For one seed in five the product's verifier checks the result too.
"""

from __future__ import annotations

import random
import signal

from faults.flows.driver import STEPS
from faults.flows.scene import Driver, Sales
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.log_server import log_server

__all__ = ["UNPROTECTED", "run"]

FAULT = "X6"
UNPROTECTED = {"transaction": r"^\d+ duplicated$"}
_VERIFIED_EVERY = 5
_TWICE_EVERY = 4


def run(seed: int, *, protected: bool = True, without: str = "transaction") -> Outcome:
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    options = ["--follow"] if protected else ["--without", without]
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        sales = Sales(bootstrap, rng)
        sales.send(80)
        # Consecutive seeds cover all the steps.
        steps = [STEPS[seed % len(STEPS)], rng.choice(STEPS)][: 2 if seed % _TWICE_EVERY == 0 else 1]
        for step in steps:
            # The first two transactions begin the generations of the flows, so do not count them. An
            # unprotected run kills at ``sent``: rows that were sent without a transaction remain visible when
            # their batch is repeated.
            nth = rng.randint(1 if outcome.hits else 3, 6)
            step_to_kill = step if protected else "sent"
            driver = Driver(bootstrap, home, "--strike", "kill", step_to_kill, str(nth), *options)
            exit_code = driver.wait()
            outcome.peak_rss_mb = max(outcome.peak_rss_mb, driver.peak_rss_mb)
            if exit_code == -signal.SIGKILL:
                outcome.hits += 1
            else:
                outcome.problems.append(f"the driver was not killed:\n{driver.output()[-3000:]}")
            sales.send(rng.randint(10, 40))
        last = Driver(
            bootstrap, home, *options, *(["--prove"] if seed % _VERIFIED_EVERY == 0 and protected else [])
        )
        if last.wait() != 0:
            outcome.problems.append(f"the last driver did not finish:\n{last.output()[-3000:]}")
        outcome.peak_rss_mb = max(outcome.peak_rss_mb, last.peak_rss_mb)
        sales.judge(outcome, home / "sales.db" if protected else None)
    return outcome
