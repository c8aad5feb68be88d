"""X13, a zombie driver of flows: stopped inside a batch (SIGSTOP), replaced by a successor that derives everything,
and woken again. On Apache Kafka for one seed in ten.

Its rows are in the log when it sleeps, or its progress record too; it has not committed. When it wakes it must be told
that it is fenced, and nothing of it may be read as committed, or be in the store that the successor follows into.
"""

from __future__ import annotations

import random

from bench.faults.flow_scene import Driver, Sales
from bench.faults.log_server import log_server
from bench.faults.outcome import Outcome
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "run"]

FAULT = "X13"
UNPROTECTED = {"transaction": r"^\d+ duplicated$"}


def run(seed: int, *, protected: bool = True, without: str = "transaction") -> Outcome:
    rng = random.Random(f"{FAULT} flow {seed}")
    outcome = Outcome(FAULT, seed)
    taken_out = [] if protected else ["--without", without]
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        sales = Sales(bootstrap, rng)
        sales.send(80)
        step = ("sent", "told")[seed % 2]
        zombie = Driver(bootstrap, home, "--strike", "stop", step, str(rng.randint(3, 5)), *taken_out)
        successor = None
        try:
            if zombie.wait_for("striking"):
                outcome.hits += 1
            successor = Driver(bootstrap, home, "--stay", "--follow", *taken_out)
            sales.until_derived(successor)
            sales.send(rng.randint(1, 20))
            zombie.wake()
            zombie.wait()
            if protected and "fenced" not in zombie.said():
                outcome.problems.append(f"the zombie was not fenced:\n{zombie.said()[-3000:]}")
            sales.send(rng.randint(1, 20))
            (home / "finish").touch()
            if successor.wait() != 0:
                outcome.problems.append(f"the successor did not finish:\n{successor.said()[-3000:]}")
        finally:
            for driver in (zombie, successor):
                if driver is not None:
                    driver.end()
                    outcome.peak_rss_mb = max(outcome.peak_rss_mb, driver.peak_rss_mb)
        sales.judge(outcome, home / "sales.db" if protected else None)
    return outcome
