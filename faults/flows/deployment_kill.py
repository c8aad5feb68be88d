"""Fault X31, a change of a schema or a function is deployed, and the processes are killed with SIGKILL.

All processes are those of a user: ``headrace run`` with the old code, ``headrace deploy`` with the new code, and then
``headrace run`` with the new code, which takes the flows over. The history and the change are random: another
function, a new field with a default, or a renamed field with an upcaster. Before some deployments, one with a required
field that the history lacks is tried: it must be refused, and change nothing.

The process that deploys is killed after a random write to ``headrace.generations`` and started again; in some runs so
is the app, with its broker. One seed in ten uses Apache Kafka. A stock consumer reads the flow's topic all the time: it
must never lose a key. At the end the topic and the view must have the rows of the new function over all records, which
the oracle computes, and ``headrace verify`` must prove the view.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.committed_records import committed
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.app_process import AppProcess
from faults.servers.log_server import is_on_kafka, log_server
from faults.servers.process_tree import pss_mb
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.generations import end_of_generations

__all__ = ["RUNS", "UNPROTECTED", "run"]

FAULT = "X31"
RUNS = 20
UNPROTECTED: dict[str, str] = {}
"""Another module of the fault switches the protections off: ``generation_switch``."""
_KEYS = 30
_WRITES_MAX = 4
_WAIT_S = 180.0
_HEAD = """
from dataclasses import dataclass
from datetime import timedelta
from headrace import App
from pyspark.sql import functions as F

app = App("rental")

@dataclass(frozen=True)
class Trip:
    trip_id: str
    bike: str
FIELDS

UPCAST
trips = app.topic("trips", Trip, key="trip_id"ARGUMENTS)
bikes = app.table("bikes", key="bike")

@app.flow(reads=[trips], writes=bikes, unbounded=True)
def ride_bikes(trips):
    return trips.groupBy("bike").agg(SUM)

app.view("bikes", bikes)
"""


@dataclass(frozen=True)
class _Version:
    """The parts of an app's source, and what its function computes from a recorded trip."""

    fields: str
    sum: str
    upcast: str = ""
    arguments: str = ""
    factor: int = 1
    bonus: int = 0

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        text = _HEAD.replace("FIELDS", self.fields).replace("SUM", self.sum)
        (folder / "app.py").write_text(
            text.replace("UPCAST", self.upcast).replace("ARGUMENTS", self.arguments)
        )

    def minutes(self, trip: dict[str, Any]) -> int:
        return int(trip["minutes"]) * self.factor + self.bonus


_OLD = _Version("    minutes: int", 'F.sum("minutes").alias("minutes")')
_REQUIRED = _Version("    minutes: int\n    district: str", 'F.max("district").alias("minutes")')
_CHANGES = {
    "function": _Version("    minutes: int", 'F.sum(F.col("minutes") * 60).alias("minutes")', factor=60),
    "default": _Version(
        "    minutes: int\n    bonus: int = 5",
        'F.sum(F.col("minutes") + F.col("bonus")).alias("minutes")',
        bonus=5,
    ),
    "upcast": _Version(
        "    seconds: int",
        'F.sum("seconds").alias("minutes")',
        """
def in_seconds(trip):
    if "minutes" in trip:
        trip["seconds"] = trip.pop("minutes") * 60
    return trip
""",
        ", upcast=in_seconds",
        factor=60,
    ),
}


def run(seed: int, *, protected: bool = True) -> Outcome:
    assert protected, "this module has no unprotected run"
    outcome = Outcome(FAULT, seed)
    rng = random.Random(f"{FAULT} deployment {seed}")
    with run_directory(FAULT, seed, in_memory=True) as home, contextlib.ExitStack() as stack:
        # Else the app has its embedded broker, which dies with it.
        kafka = stack.enter_context(log_server(home, seed, outcome)) if is_on_kafka(seed) else ""
        _Deployment(home, rng, outcome, kafka).run()
    return outcome


class _Deployment:
    def __init__(self, home: Path, rng: random.Random, outcome: Outcome, kafka: str) -> None:
        self._home = home
        self._kafka = kafka
        self._rng = rng
        self._outcome = outcome
        self._change = rng.choice(list(_CHANGES))
        self._new = _CHANGES[self._change]
        self._trips: list[dict[str, Any]] = []
        for name, version in (("old", _OLD), ("required", _REQUIRED), ("new", self._new)):
            version.write(home / name)

    def run(self) -> None:
        app = self._start("old")
        address = app.wait_for(r"log at (\S+),")[1]
        self._cluster = Cluster(address)
        self._send(self._rng.randrange(20, 100), _OLD)
        self._wait_for_rows(_OLD, "before the deployment")
        with _Reader(address, "bikes").reading() as reader:
            if self._rng.random() < 0.5:
                self._expect_refused(address)
            self._deploy(address, app)
            self._wait_for_rows(self._new, "after the switch")
        if reader.error is not None:
            self._outcome.problems.append(f"the reader failed: {reader.error!r}")
        if reader.lost_keys_max:
            self._outcome.problems.append(f"a reader saw {reader.lost_keys_max} keys disappear")

    def _start(self, version: str, address: str = "127.0.0.1:0") -> AppProcess:
        log = ("-b", self._kafka) if self._kafka else ("--listen", address)
        words = ("run", "app:app", *log, "--serve", "off", "--data", str(self._home / "data"))
        return AppProcess(self._home / version, self._home / f"run-{version}.log", *words)

    def _expect_refused(self, address: str) -> None:
        end = end_of_generations(self._cluster)
        refused = self._start_deployment("required", address)
        if refused.wait() == 0 or "district" not in refused.output:
            self._outcome.problems.append(f"a required field was accepted:\n{refused.output[-1_000:]}")
        if end_of_generations(self._cluster) != end:
            self._outcome.problems.append("a refused deployment changed the generations")

    def _start_deployment(self, version: str, address: str) -> AppProcess:
        words = ("deploy", "app:app", "-b", address, "--data", str(self._home / "data"))
        return AppProcess(self._home / version, self._home / f"deploy-{version}.log", *words)

    def _deploy(self, address: str, app: AppProcess) -> None:
        """Deploy, with kills, until the new generation serves; then restart the app with the new code."""
        kills = self._rng.randint(1, 2)
        while kills:
            kills -= 1
            deployment = self._start_deployment("new", address)
            self._send(self._rng.randrange(1, 20), _OLD)
            if self._kill_after_write(deployment):
                self._outcome.hits += 1
            if self._rng.random() < 0.3:
                app.kill()
                self._outcome.hits += 1
                app = self._start("old", address)
                app.wait_for(r"log at (\S+),")
        deployment = self._start_deployment("new", address)
        self._wait_for_rows(self._new, "while the deployment runs")
        self._outcome.peak_rss_mb = max(self._outcome.peak_rss_mb, pss_mb(deployment.pid))
        self._stop(app)
        app = self._start("new", address)
        app.wait_for(r"log at (\S+),")
        if deployment.wait() != 0:
            self._outcome.problems.append(f"the deployment failed:\n{deployment.output[-2_000:]}")
        self._send(self._rng.randrange(1, 20), self._new)
        self._wait_for_rows(self._new, "after the restart")
        self._verify(address)

    def _stop(self, app: AppProcess) -> None:
        if self._rng.random() < 0.5:
            app.kill()
        elif app.interrupt() != 130:
            self._outcome.problems.append(f"the app did not stop cleanly:\n{app.output[-2_000:]}")

    def _kill_after_write(self, deployment: AppProcess) -> bool:
        """Kill the process shortly after a random write to the topic of generations. Return whether it still ran."""
        writes, pause_s = self._rng.randint(1, _WRITES_MAX), self._rng.choice((0.0, 0.02, 0.2, 1.0))
        end = end_of_generations(self._cluster)
        deadline = time.monotonic() + self._rng.uniform(20, 60)
        while deployment.code is None and time.monotonic() < deadline:
            with contextlib.suppress(LogError):
                # A write has its record and the mark of its transaction.
                if end_of_generations(self._cluster) >= end + 2 * writes:
                    break
            time.sleep(0.005)
        time.sleep(pause_s)
        is_running = deployment.code is None
        deployment.kill()
        return is_running

    # Records and rows

    def _send(self, count: int, version: _Version) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._cluster.bootstrap})
        for _ in range(count):
            trip: dict[str, Any] = {
                "trip_id": f"t{len(self._trips)}",
                "bike": f"b{self._rng.randrange(_KEYS)}",
                "minutes": self._rng.randrange(100),
            }
            self._trips.append(trip)
            record = dict(trip)
            if version.upcast:
                record["seconds"] = int(record.pop("minutes")) * 60
            producer.produce("trips", key=str(trip["trip_id"]), value=json.dumps(record))
        producer.flush()

    def _expected(self, version: _Version) -> dict[str, int]:
        rows: dict[str, int] = {}
        for trip in self._trips:
            rows[trip["bike"]] = rows.get(trip["bike"], 0) + version.minutes(trip)
        return rows

    def _wait_for_rows(self, version: _Version, when: str) -> None:
        expected, deadline = self._expected(version), time.monotonic() + _WAIT_S
        found: dict[str, int] = {}
        while found != expected and time.monotonic() < deadline:
            time.sleep(0.2)
            with contextlib.suppress(LogError):
                found = _fold(self._cluster.bootstrap, "bikes")
        if found != expected:
            different = [key for key in {*expected, *found} if expected.get(key) != found.get(key)]
            self._outcome.problems.append(
                f"{when} ({self._change}): {len(different)} of {len(expected)} keys have other rows, such as"
                f" {[(key, found.get(key), expected.get(key)) for key in sorted(different)[:3]]}"
            )

    def _verify(self, address: str) -> None:
        words = ("verify", "app:app", "--all", "-b", address, "--data", str(self._home / "data"))
        proof = AppProcess(self._home / "new", self._home / "verify.log", *words)
        if proof.wait() != 0:
            self._outcome.problems.append(f"verify:\n{proof.output[-2_000:]}")


class _Reader:
    """A stock consumer that folds the topic by key, and counts the keys that disappear."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._stop = threading.Event()
        self.lost_keys_max = 0
        self.error: Exception | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[_Reader]:
        thread = threading.Thread(target=self._read_and_keep_error, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(30)

    def _read_and_keep_error(self) -> None:
        try:
            self._read()
        except Exception as error:
            self.error = error

    def _read(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "stock",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        keys: set[bytes] = set()
        known: set[bytes] = set()
        while not self._stop.is_set():
            for message in consumer.consume(1_000, 0.1):
                if message.error() is not None:
                    continue
                key = message.key() or b""
                known.add(key)
                keys.discard(key) if message.value() is None else keys.add(key)
                self.lost_keys_max = max(self.lost_keys_max, len(known - keys))
        consumer.close()


def _fold(bootstrap: str, topic: str) -> dict[str, int]:
    rows: dict[str, int] = {}
    for message in committed(bootstrap, topic):
        key = (message.key() or b"").decode()
        if message.value() is None:
            rows.pop(key, None)
        else:
            rows[key] = json.loads(message.value() or b"")["minutes"]
    return rows
