"""X6 for a flow in real time: its driver is killed (SIGKILL) while rows of the stretch that it is in are in the log and
nothing says so yet. The next one writes them again.

Real processes: a broker, and a driver with Spark and a follower. Somebody else sends readings of gauges, one after the
other, with numbers that rise, and looks at the SQLite file all the time: of no gauge may an older reading take the
place of a newer one, and at the end the newest of each must be there. A stock reader must find a row for every reading,
and where there are several for one, they must be alike. Without the follower's rule for repeats a gauge goes back.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.faults.committed import committed
from bench.faults.flow_scene import Driver
from bench.faults.log_server import log_server
from bench.faults.outcome import Outcome
from bench.faults.realtime_driver import FINISH
from bench.faults.workplace import workplace

__all__ = ["DRIVER", "UNPROTECTED", "Gauges", "run"]

FAULT = "X6"
UNPROTECTED = {"repeats": r"times back"}
_GAUGES = 4
_PATIENCE_S = 600.0
DRIVER = "bench.faults.realtime_driver"


class Gauges:
    """What was sent, and what is seen."""

    def __init__(self, bootstrap: str, store: Path) -> None:
        self._bootstrap = bootstrap
        self._store = store
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.newest: dict[str, int] = {}
        self.sent = 0
        self.seen: dict[str, int] = {}
        self.backwards: list[str] = []
        self._done = threading.Event()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("readings", 2, config={"retention.ms": "-1"})])["readings"].result(30)

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self.sent = self.sent + 1
            gauge = f"g{number % _GAUGES}"
            row = json.dumps({"gauge": gauge, "number": number}).encode()
            self._producer.produce("readings", row, gauge.encode(), partition=number % _GAUGES % 2)
            if number % 7:
                self.newest[gauge] = number
        assert self._producer.flush(30) == 0

    def watch(self) -> threading.Thread:
        thread = threading.Thread(target=self._watch)
        thread.start()
        return thread

    def end(self) -> None:
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self._look()

    def _look(self) -> None:
        if not self._store.exists():
            return
        with contextlib.suppress(sqlite3.Error), contextlib.closing(self._open()) as connection:
            for gauge, number in connection.execute("SELECT gauge, number FROM newest"):
                if number < self.seen.get(gauge, 0):
                    self.backwards.append(f"{gauge} from {self.seen[gauge]} to {number}")
                self.seen[gauge] = number

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._store}?mode=ro", uri=True)

    def rows(self) -> list[tuple[str, bytes]]:
        """The source of each row that is in the log, and the row."""
        try:
            found = committed(self._bootstrap, "newest")
        except KeyError:
            return []
        return [(dict(one.headers() or [])["__headrace.source"].decode(), one.value()) for one in found]

    def repeats(self) -> int:
        found = self.rows()
        return len(found) - len({source for source, _ in found})

    def until_written(self, driver: Driver) -> None:
        """All that follows from what was sent is in the log."""
        wanted = sum(1 for number in range(1, self.sent + 1) if number % 7)
        deadline = time.monotonic() + _PATIENCE_S
        while driver.runs and len({source for source, _ in self.rows()}) < wanted:
            assert time.monotonic() < deadline, f"nothing goes on:\n{driver.said()[-3000:]}"
            time.sleep(0.1)

    def judge(self, outcome: Outcome) -> None:
        self._look()
        told: dict[str, bytes] = {}
        for source, value in self.rows():
            if told.setdefault(source, value) != value:
                outcome.problems.append(f"rows of {source} are not alike: {told[source]!r}, {value!r}")
        numbers = sorted(json.loads(value)["number"] for value in told.values())
        wanted = [number for number in range(1, self.sent + 1) if number % 7]
        outcome.lost += len(set(wanted) - set(numbers))
        if numbers != wanted:
            outcome.problems.append(f"{len(numbers)} rows for {len(wanted)} readings")
        if self.backwards:
            outcome.problems.append(f"{len(self.backwards)} times back: {self.backwards[:4]}")
        if self.seen != self.newest:
            outcome.problems.append(f"the view has {self.seen}, and newest are {self.newest}")

    def noted(self) -> int:
        """The rows that the flow's progress tells of."""
        records = [json.loads(one.value()) for one in committed(self._bootstrap, "keep.progress")]
        return sum(one["rows_out"] for one in records if one["record"] == "batch")

    def until_unnoted(self) -> None:
        """Send until rows are in the log that no progress tells of yet: the middle of a stretch."""
        deadline = time.monotonic() + _PATIENCE_S
        while len(self.rows()) <= self.noted():
            assert time.monotonic() < deadline, "every row is noted at once"
            self.send(1)
            time.sleep(0.05)


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
        try:
            for _ in range(1 + (seed % 3 == 0)):
                driver = Driver(bootstrap, home, *words, program=DRIVER)
                gauges.send(rng.randint(20, 60))
                gauges.until_written(driver)
                gauges.send(rng.randint(1, 20))
                time.sleep(rng.random() * 0.05)
                before = len(gauges.rows())
                driver.end()
                outcome.peak_rss_mb = max(outcome.peak_rss_mb, driver.peak_rss_mb)
                if driver.wait() != -signal.SIGKILL:
                    outcome.problems.append(f"the driver ended by itself:\n{driver.said()[-3000:]}")
                outcome.hits += before > gauges.noted()
            (home / FINISH).touch()
            prove = ["--prove"] if protected and seed % 2 == 0 else []
            last = Driver(bootstrap, home, *words, *prove, program=DRIVER)
            if last.wait() != 0:
                outcome.problems.append(f"the last driver did not finish:\n{last.said()[-3000:]}")
            outcome.peak_rss_mb = max(outcome.peak_rss_mb, last.peak_rss_mb)
        finally:
            gauges.end()
            watching.join()
        gauges.judge(outcome)
        outcome.figures["repeats"] = gauges.repeats()
    return outcome
