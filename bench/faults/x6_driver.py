"""X6, the driver of flows is killed in the middle of a batch: with its rows in the log, with the progress record too,
after the commit and before Spark has noted it.

Real processes: a broker, and a driver with Spark that kills itself at a step (SIGKILL). Afterwards another one derives
what is left. A stock reader of committed records must find every row once, sums that are those of all rows, and
batches without a gap.
"""

from __future__ import annotations

import random
import signal

from bench.faults.flow_driver import STEPS
from bench.faults.flow_scene import Driver, Sales
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "run"]

FAULT = "X6"
UNPROTECTED = ("transaction",)


def run(
    seed: int, *, protected: bool = True, without: str = UNPROTECTED[0], kills: tuple[int, int] = (1, 3)
) -> Outcome:
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    taken_out = [] if protected else ["--without", without]
    with workplace(FAULT, seed) as home, BrokerProcess(home, forked=True) as broker:
        broker.start()
        sales = Sales(broker.bootstrap, rng)
        sales.send(150)
        for _ in range(rng.randint(*kills)):
            # Without a transaction rows that were sent are there for good, whatever becomes of their batch.
            step = rng.choice(STEPS) if protected else "sent"
            # The first two are those of the generations' own records.
            nth = rng.randint(1 if outcome.hits else 3, 6)
            driver = Driver(broker.bootstrap, home, "--strike", "kill", step, str(nth), *taken_out)
            if driver.wait() == -signal.SIGKILL:
                outcome.hits += 1
            sales.send(rng.randint(30, 90))
        last = Driver(broker.bootstrap, home, *taken_out)
        if last.wait() != 0:
            outcome.problems.append(f"the last driver did not finish:\n{last.said()[-3000:]}")
        sales.judge(outcome)
        outcome.problems += broker.traces()
        broker.kill()
        outcome.peak_rss_mb = broker.peak_rss_mb
    return outcome
