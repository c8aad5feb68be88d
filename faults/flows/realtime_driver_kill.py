"""Fault X6 for a real-time flow: its driver is killed with SIGKILL while the log has rows that no progress record
covers yet. The next driver writes these rows again.

The processes are real: a broker, and a driver with Spark and a follower. A client sends readings of gauges with
increasing numbers and continuously reads the SQLite file. No gauge may show an older reading after a newer one, and at
the end each must show its newest. A stock reader must find a row for every reading, and several rows for one reading
must be equal. If the follower does not skip repeated rows, a gauge shows an older reading again.
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

from faults.committed_records import committed, committed_json, headers_of
from faults.flows.realtime_driver import FINISH
from faults.flows.scene import Driver
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.log_server import log_server

__all__ = ["DRIVER", "UNPROTECTED", "Gauges", "run"]

FAULT = "X6"
UNPROTECTED = {"deduplication": r"times back"}
_GAUGES = 4
_PATIENCE_S = 600.0
DRIVER = "faults.flows.realtime_driver"


class Gauges:
    """The sent readings, and the readings that are visible in the store."""

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

    def stop_watching(self) -> None:
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self._read_view()

    def _read_view(self) -> None:
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
        """Return each row in the log as a pair: the header that identifies the row's source record, and the row's
        value.
        """
        try:
            messages = committed(self._bootstrap, "newest")
        except KeyError:
            return []
        return [
            (headers_of(message)["__headrace.source"].decode(), message.value() or b"")
            for message in messages
        ]

    def repeats(self) -> int:
        rows = self.rows()
        return len(rows) - len({source for source, _ in rows})

    def wait_until_written(self, driver: Driver) -> None:
        """Wait until the log has the row of every sent reading, or the driver has exited."""
        expected = sum(1 for number in range(1, self.sent + 1) if number % 7)
        deadline = time.monotonic() + _PATIENCE_S
        while driver.is_running and len({source for source, _ in self.rows()}) < expected:
            assert time.monotonic() < deadline, f"the driver makes no progress:\n{driver.output()[-3000:]}"
            time.sleep(0.1)

    def judge(self, outcome: Outcome) -> None:
        self._read_view()
        by_source: dict[str, bytes] = {}
        for source, value in self.rows():
            if by_source.setdefault(source, value) != value:
                outcome.problems.append(f"rows of {source} differ: {by_source[source]!r}, {value!r}")
        numbers = sorted(json.loads(value)["number"] for value in by_source.values())
        expected = [number for number in range(1, self.sent + 1) if number % 7]
        outcome.lost += len(set(expected) - set(numbers))
        if numbers != expected:
            outcome.problems.append(f"{len(numbers)} rows for {len(expected)} readings")
        if self.backwards:
            outcome.problems.append(f"{len(self.backwards)} times back: {self.backwards[:4]}")
        if self.seen != self.newest:
            outcome.problems.append(f"the view has {self.seen} instead of the newest {self.newest}")

    def covered_rows(self) -> int:
        """Return the number of rows that the flow's progress covers."""
        records = committed_json(self._bootstrap, "gauges.keep.progress")
        return sum(record["rows_out"] for record in records if record["record"] == "batch")

    def send_until_uncovered(self) -> None:
        """Send until the log has rows that no progress record covers yet."""
        deadline = time.monotonic() + _PATIENCE_S
        while len(self.rows()) <= self.covered_rows():
            assert time.monotonic() < deadline, "a progress record covers every row immediately"
            self.send(1)
            time.sleep(0.05)


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
        try:
            for _ in range(1 + (seed % 3 == 0)):
                driver = Driver(bootstrap, home, *options, program=DRIVER)
                gauge_log.send(rng.randint(20, 60))
                gauge_log.wait_until_written(driver)
                gauge_log.send(rng.randint(1, 20))
                time.sleep(rng.random() * 0.05)
                before = len(gauge_log.rows())
                driver.kill()
                outcome.peak_rss_mb = max(outcome.peak_rss_mb, driver.peak_rss_mb)
                if driver.wait() != -signal.SIGKILL:
                    outcome.problems.append(f"the driver exited by itself:\n{driver.output()[-3000:]}")
                outcome.hits += before > gauge_log.covered_rows()
            (home / FINISH).touch()
            prove = ["--prove"] if protected and seed % 2 == 0 else []
            last = Driver(bootstrap, home, *options, *prove, program=DRIVER)
            if last.wait() != 0:
                outcome.problems.append(f"the last driver did not finish:\n{last.output()[-3000:]}")
            outcome.peak_rss_mb = max(outcome.peak_rss_mb, last.peak_rss_mb)
        finally:
            gauge_log.stop_watching()
            watcher.join()
        gauge_log.judge(outcome)
        outcome.figures["repeats"] = gauge_log.repeats()
    return outcome
