"""The log beside Apache Kafka, measured in one run on one machine: throughput, latency, small requests,
transactions, CPU, memory, start-up, and whether a message costs the same with many partitions and much data.

    python -m bench.log [--quick] [--rounds N] [--scale X] [--only WORD ...] [--grown-gb X] [--results DIR]

Two comparisons of equal promises: neither waits for the disk (durability ``os`` beside Kafka's default), and both
do (``synced`` beside ``log.flush.interval.messages=1``). In each, both servers are up at the same time and take
turns, cell by cell and round by round, so that a noisy moment of the machine hits both; one rests while the other
works. Figures are medians of the rounds. Kafka gets the heap and the collector of its own start script, and
work to warm its compilers before anything counts. Clients are the same processes with the same settings.

A log of 20 GB takes minutes to write and more disk than a check should. By default the grown log has 2 GB, which
makes several segments as well; what could grow with size (index, segment list, start) is by segment and entry.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contestant import Contestant, Launch, headrace, kafka
from bench.machine import write_machine
from bench.report import RESULTS, write_results

__all__ = ["main"]

_CELLS = tuple(
    (size, partitions, codec) for codec in ("none", "lz4") for partitions in (1, 8) for size in (100, 1000)
)
_RATES = (1_000, 10_000)
_FLAT = 0.8


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    rounds: int
    messages: int
    kilobytes: int
    seconds: int
    requests: int
    awaited: int
    transactions: int
    partitions: int
    grown_bytes: int
    only: tuple[str, ...]
    cells: tuple[tuple[int, int, str], ...] = _CELLS
    rates: tuple[int, ...] = _RATES

    def wants(self, part: str) -> bool:
        return not self.only or part in self.only


class Comparison:
    """Two contestants and what was measured of them, round by round."""

    def __init__(self, promise: str, peer: str, plan: Plan, ours: Launch, theirs: Launch) -> None:
        self.promise = promise
        self.peer = peer
        self.plan = plan
        self._launches = {"headrace": ours, "kafka": theirs}
        self._figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._units: dict[str, tuple[str, float]] = {}
        self._own: list[dict[str, Any]] = []
        self.both: list[Contestant] = []

    def note(self, who: Contestant, name: str, value: float, unit: str, goal: float = 1.0) -> None:
        self._figures[name][who.name].append(value)
        self._units[name] = (unit, goal)
        print(f"  {self.promise}: {name}: {who.name} {value:,.2f} {unit}", flush=True)

    def note_own(self, name: str, peer: str, us: list[float], them: list[float], unit: str) -> None:
        """Something of ours beside ours."""
        print(f"  {self.promise}: {name}: {us} beside {them} {unit}", flush=True)
        self._own.append({"name": name, "peer": peer, "us": us, "them": them, "unit": unit, "goal": _FLAT})

    def rounds(self) -> Iterator[Contestant]:
        """Whose turn it is; who begins alternates."""
        for number in range(self.plan.rounds):
            yield from self.both if number % 2 else reversed(self.both)

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for name, (unit, goal) in self._units.items():
            us, them = self._figures[name]["headrace"], self._figures[name]["kafka"]
            rows.append(
                {"name": f"{name} ({self.promise})", "peer": self.peer, "us": us, "them": them}
                | {"unit": unit, "goal": goal}
            )
        return rows + [{**row, "name": f"{row['name']} ({self.promise})"} for row in self._own]

    def run(self) -> None:
        plan = self.plan
        # One less than the rounds, since the two that stay for the rest are a round as well.
        for _ in range(plan.rounds - 1) if plan.wants("start") else ():
            for name, launch in self._launches.items():
                contestant = Contestant(name, launch)
                try:
                    self._note_start(contestant)
                finally:
                    contestant.stop()
        try:
            for name, launch in self._launches.items():
                self.both.append(Contestant(name, launch))
                if plan.wants("start"):
                    self._note_start(self.both[-1])
            for contestant in self.both:
                self._warm(contestant)
            for part, measure in (
                ("throughput", self._throughput),
                ("java", self._java),
                ("latency", self._latency),
                ("requests", self._requests),
                ("transactions", self._transactions),
                ("partitions", self._partitions),
            ):
                if plan.wants(part):
                    measure()
            if plan.wants("start"):
                for contestant in self.both:
                    self.note(contestant, "resident memory after load", contestant.rss_mb(), "MB", 5.0)
            if plan.wants("grown"):
                self._grown()
        finally:
            for contestant in self.both:
                contestant.stop()

    def _note_start(self, contestant: Contestant) -> None:
        self.note(contestant, "start-up to the first answer", contestant.start_ms, "ms", 10.0)
        time.sleep(1)
        self.note(contestant, "resident memory at rest", contestant.rss_mb(), "MB", 5.0)

    def _warm(self, contestant: Contestant) -> None:
        """Kafka's compilers need work before they are done; ours gets the same."""
        plan = self.plan
        topic = contestant.topic()
        contestant.load("produce", topic, count=plan.messages, size=100)
        contestant.load("consume", topic, count=plan.messages)
        contestant.load("pipelined", topic, count=plan.awaited)
        contestant.drop(topic)

    def _throughput(self) -> None:
        for size, partitions, codec in self.plan.cells:
            count = self.plan.messages if size == 100 else self.plan.kilobytes
            cell = f"{size:,} B, {partitions} partition{'s' * (partitions > 1)}, {codec}"
            for contestant in self.rounds():
                topic = contestant.topic(partitions)
                wrote = contestant.load("produce", topic, count=count, size=size, codec=codec)
                self.note(contestant, f"produce, {cell}", wrote["rate"], "msg/s")
                read = contestant.load("consume", topic, count=count, partitions=partitions)
                self.note(contestant, f"consume, {cell}", read["rate"], "msg/s")
                for verb, figures in (("produced", wrote), ("consumed", read)):
                    # The kernel counts by the hundredth of a second: less is not there.
                    cpu_s = max(figures["cpu_s"], 0.01) * 1e6 / count
                    self.note(contestant, f"server's CPU per million {verb}, {cell}", cpu_s, "CPU s")
                contestant.drop(topic)

    def _java(self) -> None:
        for contestant in self.rounds():
            topic = contestant.topic()
            figures = contestant.load("java_produce", topic, count=self.plan.messages, size=100)
            self.note(contestant, "produce, 100 B, 1 partition, none, Java client", figures["rate"], "msg/s")
            contestant.drop(topic)

    def _latency(self) -> None:
        for rate in self.plan.rates:
            for contestant in self.rounds():
                topic = contestant.topic()
                figures = contestant.load("latency", topic, rate=rate, seconds=self.plan.seconds)
                for name in ("p50", "p99", "p99.9"):
                    self.note(contestant, f"end to end at {rate:,}/s, {name}", figures[f"{name}_ms"], "ms")
                contestant.drop(topic)

    def _requests(self) -> None:
        for work, count, name in (
            ("pipelined", self.plan.requests, "small requests, pipelined"),
            ("one_by_one", self.plan.awaited, "small requests, one by one"),
        ):
            for contestant in self.rounds():
                topic = contestant.topic()
                figures = contestant.load(work, topic, count=count)
                self.note(contestant, name, figures["rate"], "requests/s")
                cpu_s = max(figures["cpu_s"], 0.01) * 1e6 / count
                self.note(contestant, f"server's CPU per million {name}", cpu_s, "CPU s")

    def _transactions(self) -> None:
        for contestant in self.rounds():
            topic = contestant.topic()
            figures = contestant.load("transactions", topic, count=self.plan.transactions, records=10)
            self.note(contestant, "transactions of 10 messages", figures["rate"], "transactions/s")

    def _partitions(self) -> None:
        many = self.plan.partitions
        cost: dict[int, list[float]] = defaultdict(list)
        for partitions in (1, many):
            topics = {contestant.name: contestant.topic(partitions) for contestant in self.both}
            for contestant in self.rounds():
                topic = topics[contestant.name]
                figures = contestant.load("produce", topic, count=self.plan.messages, size=100)
                if partitions > 1:
                    name = f"produce, 100 B, {many:,} partitions, none"
                    self.note(contestant, name, figures["rate"], "msg/s")
                if contestant.name == "headrace":
                    cost[partitions].append(max(figures["cpu_s"], 0.01) * 1e6 / self.plan.messages)
            for contestant in self.both:
                contestant.drop(topics[contestant.name])
        self.note_own(
            f"server's CPU per million produced, {many:,} partitions",
            "Headrace with 1 partition",
            cost[many],
            cost[1],
            "CPU s",
        )

    def _grown(self) -> None:
        """Ours beside itself: with a megabyte in the log, and with very much."""
        us = next(contestant for contestant in self.both if contestant.name == "headrace")
        count = self.plan.messages
        cost: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        rounds = range(self.plan.rounds)
        for state in ("small", "grown"):
            topic = us.topic()
            size = 1 << 20 if state == "small" else self.plan.grown_bytes
            us.load("produce", topic, count=size // 10_000, size=10_000)
            for _ in rounds:
                wrote = us.load("produce", topic, count=count, size=100)
                cost["produce"][state].append(max(wrote["cpu_s"], 0.01) * 1e6 / count)
            for _ in rounds:
                us.restart()
                cost["start"][state].append(us.start_ms)
        names = f"{self.plan.grown_bytes / 2**30:.3g} GB of log"
        small = "Headrace with 1 MB of log"
        for what, name, unit in (
            ("produce", f"server's CPU per million produced, {names}", "CPU s"),
            ("start", f"start-up to the first answer, {names}", "ms"),
        ):
            self.note_own(name, small, cost[what]["grown"], cost[what]["small"], unit)


def _plan(options: argparse.Namespace) -> Plan:
    only = tuple(options.only or ())
    if options.quick:
        return Plan(1, 2_000, 500, 1, 200, 50, 10, 20, 4 << 20, only, cells=_CELLS[-1:], rates=_RATES[:1])

    def some(number: int) -> int:
        return max(1, round(number * options.scale))

    return Plan(
        rounds=options.rounds,
        messages=some(1_000_000),
        kilobytes=some(200_000),
        seconds=max(2, some(4)),
        requests=some(10_000),
        awaited=some(2_000),
        transactions=some(500),
        partitions=1_000,
        grown_bytes=round(options.grown_gb * 2**30),
        only=only,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a little of everything: does it run at all?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the usual work")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="some of: " + ", ".join(_PARTS))
    parser.add_argument("--grown-gb", type=float, default=2.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.only and not set(options.only) <= set(_PARTS):
        parser.error(f"--only takes {', '.join(_PARTS)}")
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    plan = _plan(options)
    comparisons = [
        Comparison(
            "page cache",
            "Apache Kafka 4.3, which does not wait for the disk",
            plan,
            headrace("os"),
            kafka({}),
        ),
        Comparison(
            "synced",
            "Apache Kafka 4.3, log.flush.interval.messages=1",
            plan,
            headrace("synced"),
            kafka({"log.flush.interval.messages": "1"}),
        ),
    ]
    began = time.monotonic()
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    for comparison in comparisons[: 1 if options.quick else 2]:
        comparison.run()
    rows = [row for comparison in comparisons for row in comparison.rows()]
    path = write_results("log", rows, options.results)
    write_machine(options.results)
    print(f"{len(rows)} rows in {path}, after {time.monotonic() - began:.0f} s")


_PARTS = ("start", "throughput", "java", "latency", "requests", "transactions", "partitions", "grown")


if __name__ == "__main__":
    main()
