"""Fault X13, a zombie driver of a real-time flow: it is paused (SIGSTOP), replaced by a successor, and resumed.

For odd seeds only Python is paused. Its JVM continues, so for a while two drivers write the same rows and the same
checkpoint. For even seeds the JVM is paused too, while it sends rows. No gauge may show an older reading again, every
reading must have its row, and the zombie must get an error after it resumes. If the follower does not skip repeated
rows, a gauge shows an older reading again. The pause is a hit if the log then has rows that no progress record covers.
"""

from __future__ import annotations

import random

from faults.flows.realtime_driver import FINISH
from faults.flows.realtime_driver_kill import DRIVER, Gauges
from faults.flows.scene import Driver
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.log_server import log_server

__all__ = ["UNPROTECTED", "run"]

FAULT = "X13"
UNPROTECTED = {"deduplication": r"times back"}


def run(seed: int, *, protected: bool = True, without: str = "deduplication") -> Outcome:
    rng = random.Random(f"{FAULT} realtime {seed}")
    outcome = Outcome(FAULT, seed)
    options = [] if protected else ["--without", without]
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        gauge_log = Gauges(bootstrap, home / "gauges.db")
        watcher = gauge_log.watch()
        zombie = Driver(bootstrap, home, *options, program=DRIVER)
        successor = None
        try:
            gauge_log.send(rng.randint(20, 60))
            gauge_log.wait_until_written(zombie)
            gauge_log.send(rng.randint(1, 20))
            gauge_log.send_until_uncovered()
            zombie.pause(python_only=bool(seed % 2))
            outcome.hits += zombie.is_running and len(gauge_log.rows()) > gauge_log.covered_rows()
            successor = Driver(bootstrap, home, *options, program=DRIVER)
            gauge_log.send(rng.randint(1, 20))
            gauge_log.wait_until_written(successor)
            zombie.resume()
            gauge_log.send(rng.randint(1, 20))
            # The log fences the flow, or the store fences the view.
            if zombie.wait() == 0 or not any(
                word in zombie.output() for word in ("taken over", "StaleWriter")
            ):
                outcome.problems.append(f"the zombie was not fenced:\n{zombie.output()[-3000:]}")
            gauge_log.send(rng.randint(1, 20))
            (home / FINISH).touch()
            if successor.wait() != 0:
                outcome.problems.append(f"the successor did not finish:\n{successor.output()[-3000:]}")
        finally:
            for driver in (zombie, successor):
                if driver is not None:
                    driver.kill()
                    outcome.peak_rss_mb = max(outcome.peak_rss_mb, driver.peak_rss_mb)
            gauge_log.stop_watching()
            watcher.join()
        gauge_log.judge(outcome)
        outcome.figures["repeats"] = gauge_log.repeats()
    return outcome
