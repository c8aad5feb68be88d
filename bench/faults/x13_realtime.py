"""X13, a zombie driver of a flow in real time: put to sleep (SIGSTOP), replaced by a successor, and woken again.

In one seed of two only Python sleeps: its JVM goes on, and for a while two of them write the same rows and the same
checkpoint. In the others both sleep, in the middle of whatever they were sending. No gauge may go back meanwhile, every
reading must have its row, and the zombie must be told when it wakes. Without the follower's rule for repeats a gauge
goes back. It is a hit if rows are in the log that no progress tells of when it falls asleep.
"""

from __future__ import annotations

import random

from bench.faults.flow_scene import Driver
from bench.faults.log_server import log_server
from bench.faults.outcome import Outcome
from bench.faults.realtime_driver import FINISH
from bench.faults.workplace import workplace
from bench.faults.x6_realtime import DRIVER, Gauges

__all__ = ["UNPROTECTED", "run"]

FAULT = "X13"
UNPROTECTED = {"repeats": r"times back"}


def run(seed: int, *, protected: bool = True, without: str = "repeats") -> Outcome:
    rng = random.Random(f"{FAULT} realtime {seed}")
    outcome = Outcome(FAULT, seed)
    words = [] if protected else ["--without", without]
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        gauges = Gauges(bootstrap, home / "gauges.db")
        watching = gauges.watch()
        zombie = Driver(bootstrap, home, *words, program=DRIVER)
        successor = None
        try:
            gauges.send(rng.randint(20, 60))
            gauges.until_written(zombie)
            gauges.send(rng.randint(1, 20))
            gauges.until_unnoted()
            zombie.sleep(alone=bool(seed % 2))
            outcome.hits += zombie.runs and len(gauges.rows()) > gauges.noted()
            successor = Driver(bootstrap, home, *words, program=DRIVER)
            gauges.send(rng.randint(1, 20))
            gauges.until_written(successor)
            zombie.wake()
            gauges.send(rng.randint(1, 20))
            # By the log, of the flow; or by the store, of the view.
            if zombie.wait() == 0 or not any(one in zombie.said() for one in ("taken over", "StaleWriter")):
                outcome.problems.append(f"the zombie was not told:\n{zombie.said()[-3000:]}")
            gauges.send(rng.randint(1, 20))
            (home / FINISH).touch()
            if successor.wait() != 0:
                outcome.problems.append(f"the successor did not finish:\n{successor.said()[-3000:]}")
        finally:
            for driver in (zombie, successor):
                if driver is not None:
                    driver.end()
                    outcome.peak_rss_mb = max(outcome.peak_rss_mb, driver.peak_rss_mb)
            gauges.end()
            watching.join()
        gauges.judge(outcome)
        outcome.figures["repeats"] = gauges.repeats()
    return outcome
