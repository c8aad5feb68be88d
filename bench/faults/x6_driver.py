"""X6, the driver of flows is killed in the middle of a batch: with its rows in the log, with the progress record too,
after the commit and before Spark has noted it.

Real processes: a broker, or Apache Kafka for one seed in ten, and a driver with Spark and followers that kills itself
at a step (SIGKILL). Afterwards another one derives what is left. A stock reader of committed records must find every
row once, sums that are those of all rows, and batches without a gap; SQLite's rows are the same, one by one. For one
seed in five the product proves it too.
"""

from __future__ import annotations

import random
import signal

from bench.faults.flow_driver import STEPS
from bench.faults.flow_scene import Driver, Sales
from bench.faults.log_server import log_server
from bench.faults.outcome import Outcome
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "run"]

FAULT = "X6"
UNPROTECTED = {"transaction": r"^\d+ duplicated$"}
_PROVEN_EVERY = 5
_TWICE_EVERY = 4


def run(seed: int, *, protected: bool = True, without: str = "transaction") -> Outcome:
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    words = ["--follow"] if protected else ["--without", without]
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        sales = Sales(bootstrap, rng)
        sales.send(80)
        # Seeds in a row go through all the steps.
        steps = [STEPS[seed % len(STEPS)], rng.choice(STEPS)][: 2 if seed % _TWICE_EVERY == 0 else 1]
        for step in steps:
            # The first two are those of the generations' own records. Without a transaction rows that were sent are
            # there for good, whatever becomes of their batch.
            nth = rng.randint(1 if outcome.hits else 3, 6)
            where = step if protected else "sent"
            driver = Driver(bootstrap, home, "--strike", "kill", where, str(nth), *words)
            ended = driver.wait()
            outcome.peak_rss_mb = max(outcome.peak_rss_mb, driver.peak_rss_mb)
            if ended == -signal.SIGKILL:
                outcome.hits += 1
            else:
                outcome.problems.append(f"the driver was not killed:\n{driver.said()[-3000:]}")
            sales.send(rng.randint(10, 40))
        last = Driver(
            bootstrap, home, *words, *(["--prove"] if seed % _PROVEN_EVERY == 0 and protected else [])
        )
        if last.wait() != 0:
            outcome.problems.append(f"the last driver did not finish:\n{last.said()[-3000:]}")
        outcome.peak_rss_mb = max(outcome.peak_rss_mb, last.peak_rss_mb)
        sales.judge(outcome, home / "sales.db" if protected else None)
    return outcome
