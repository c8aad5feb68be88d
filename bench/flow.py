"""Flows beside the same queries written by hand in Structured Streaming, measured in one run on one machine:
throughput, CPU, how soon an event is seen in a view, how fast a view is proven, start-up.

    python -m bench.flow [--quick] [--rounds N] [--scale X] [--only WORD ...] [--results DIR]

Both read the same topic of the same embedded broker with the same session, each in a process of its own, and take
turns; who begins alternates. It counts only if both have written the same records. A flow does more for it: every
batch is one transaction with its progress, values that do not fit and late rows are laid aside and counted. Figures are
medians of the rounds. The CPU is that of the driver, Python and JVM; the broker's does not count.

How soon an event is seen has no peer, but a limit; how fast a view is proven is held against how fast it came about.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.digest import digest
from bench.driver import Task
from bench.host import Fresh, Here, Host
from bench.machine import write_machine
from bench.orders import fill
from bench.pace import watch
from bench.process_tree import cpu_s
from bench.report import RESULTS, write_results
from bench.sight import spans
from bench.start_up import by_hand_s, headrace_s
from bench.verify import prove
from headrace.client.cluster import Cluster
from tests.support.embedded import start_headrace

__all__ = ["main"]

_PARTS = ("throughput", "latency", "verify", "start")
_BY_HAND = "Structured Streaming by hand, Spark's Kafka sink (at least once)"
_TITLES = {"kept": "map and filter", "per_minute": "window aggregation"}
_SEEN = {
    "kept": ("map and filter", 1_000.0),
    "kept_now": ("map and filter in real time (at least once)", 100.0),
    "per_minute": ("window aggregation", 2_000.0),
}
"""How soon an event is seen in a view, and the limit in milliseconds."""


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    rounds: int
    events: int
    at_once: int
    partitions: int
    rate: int
    warm_s: float
    seconds: float
    parts: tuple[str, ...]


class Measured:
    """Figures of both, round by round."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def note(self, who: str, name: str, peer: str, value: float, unit: str) -> None:
        self._figures[name, peer, unit][who].append(value)
        print(f"  {name}: {who} {value:,.2f} {unit}, load {os.getloadavg()[0]:.1f}", flush=True)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "peer": peer, "us": both["us"], "them": both["them"], "unit": unit, "goal": 1.0}
            for (name, peer, unit), both in self._figures.items()
        ]


class Bench:
    def __init__(self, plan: Plan, host: Host, bootstrap: str, home: Path) -> None:
        self.measured = Measured()
        self._plan = plan
        self._host = host
        self._bootstrap = bootstrap
        self._cluster = Cluster(bootstrap)
        self._home = home

    def run(self) -> None:
        for part, measure in (
            ("throughput", self._throughput),
            ("latency", self._latency),
            ("verify", self._verify),
            ("start", self._start),
        ):
            if part in self._plan.parts:
                measure()

    def _turns(self) -> Iterator[tuple[int, str]]:
        for number in range(self._plan.rounds):
            for who in ("us", "them") if number % 2 else ("them", "us"):
                yield number, who

    def _throughput(self) -> None:
        plan = self._plan
        self._fill()
        for query, title in _TITLES.items():
            found = set()
            for number, who in self._turns():
                name = f"{query}-{who}-{number}"
                work = "flow" if who == "us" else "by-hand"
                task = self._task(work, query, name)
                with self._host.run(task) as running:
                    pace = watch(
                        task.settings.checkpoints,
                        plan.events,
                        lambda pid=running.pid: cpu_s(pid),  # type: ignore[misc]
                        running.check,
                    )
                self.measured.note(who, f"throughput, {title}", _BY_HAND, pace.rate, "events/s")
                self.measured.note(
                    who, f"driver's CPU per million events, {title}", _BY_HAND, pace.cpu_s, "CPU s"
                )
                found.add(digest(self._cluster, name))
            if len(found) != 1:
                raise SystemExit(f"{title}: the same query has given different records: {found}")

    def _fill(self) -> None:
        if self._cluster.topic("orders") is None:
            fill(self._cluster, "orders", self._plan.events, self._plan.partitions)

    def _task(self, work: str, query: str, name: str) -> Task:
        plan, home = self._plan, self._home / name
        return Task(work, query, self._bootstrap, "orders", name, home, plan.at_once, plan.partitions)

    def _latency(self) -> None:
        plan = self._plan
        for query, (title, limit_ms) in _SEEN.items():
            name = f"{query}-seen"
            topic = f"{name}-orders"
            self._cluster.ensure_topic(topic, 1)
            task = Task("flow+view", query, self._bootstrap, topic, name, self._home / name, plan.at_once, 1)
            with self._host.run(task) as running:
                taken = spans(
                    self._cluster,
                    query,
                    topic,
                    task.view_file,
                    running.check,
                    rate=plan.rate,
                    warm_s=plan.warm_s,
                    seconds=plan.seconds,
                )
            for part, at in (("p50", 0.5), ("p99", 0.99)):
                row = f"event to row in SQLite at {plan.rate}/s, {title}, {part}"
                peer = f"a limit of {limit_ms / 1000:g} s"
                self.measured.note("us", row, peer, taken[int(len(taken) * at)] * 1000, "ms")
                self.measured.note("them", row, peer, limit_ms, "ms")

    def _verify(self) -> None:
        self._fill()
        for query, title in _TITLES.items():
            for number in range(self._plan.rounds):
                task = self._task("flow+proof", query, f"{query}-proven-{number}")
                proof = prove(self._host, task, self._plan.events)
                row, peer = f"verify, {title}", "the flow and its view, when they came about"
                self.measured.note("us", row, peer, proof.proven, "events/s")
                self.measured.note("them", row, peer, proof.made, "events/s")

    def _start(self) -> None:
        name = "headrace run examples.shop:app, from the command to the first derived row"
        peer = "a PySpark script by hand, its broker up already, to the first row in its topic"
        for number, who in self._turns():
            home = self._home / f"start-{who}-{number}"
            self.measured.note(who, name, peer, (headrace_s if who == "us" else by_hand_s)(home), "s")


@contextlib.contextmanager
def _host(quick: bool, home: Path) -> Iterator[Host]:
    if not quick:
        yield Fresh()
        return
    from headrace.flow.session import start, stop
    from headrace.settings import Settings, SparkSettings

    # For a few rows the second compiler costs more than it gives.
    little = SparkSettings(driver_memory="768m", java_options="-XX:TieredStopAtLevel=1")
    spark = start(Settings(data=home / "spark", spark=little), "bench", slots=1)
    try:
        yield Here(spark)
    finally:
        stop(spark)


def _plan(options: argparse.Namespace) -> Plan:
    only = tuple(options.only or ())
    if options.quick:
        return Plan(1, 2_000, 1_000, 2, 50, 0.5, 1.0, only or _PARTS[:3])
    return Plan(
        rounds=options.rounds,
        events=max(10_000, round(2_000_000 * options.scale)),
        at_once=100_000,
        partitions=2,
        rate=100,
        warm_s=max(2.0, 20.0 * options.scale),
        seconds=max(2.0, 60.0 * options.scale),
        parts=only or _PARTS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="a little of all that one process can do: does it run at all?"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the usual work")
    parser.add_argument("--only", nargs="+", metavar="WORD", choices=_PARTS, help=", ".join(_PARTS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    began = time.monotonic()
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        server = start_headrace(home / "broker")
        try:
            with _host(options.quick, home) as host:
                bench = Bench(_plan(options), host, server.bootstrap, home)
                bench.run()
        finally:
            server.stop()
    rows = bench.measured.rows()
    path = write_results("flow", rows, options.results)
    write_machine(options.results)
    print(f"{len(rows)} rows in {path}, after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
