"""The log against Apache Kafka, measured in one run on one machine: throughput, latency, small requests, transactions,
CPU, memory, and start-up. It also measures whether a message costs the same with many partitions and much data.

    python -m bench.log [--quick] [--rounds N] [--scale X] [--only PART ...] [--grown-gb X] [--results DIR]

Two comparisons have equal guarantees. In one, neither server waits for the disk (durability ``os`` against
Kafka's default). In the other, both wait (``synced`` against ``log.flush.interval.messages=1``). In each, both servers
run at the same time and take turns, cell by cell and round by round, so that a disturbance of the machine hits both.
One server is idle while the other works. Figures are medians of the rounds. Kafka gets the heap and the collector of
its own start script, and work to warm its compilers before anything counts. Clients are the same processes with the
same settings.

By default the grown log has 2 GB, which is enough for several segments: a log of 20 GB takes minutes to write and much
disk space. The costs that could grow with the size (index, segment list, start) depend on segments and entries.
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

from bench.log.log_server import Launch, MeasuredServer, headrace, kafka
from bench.machine import write_machine
from bench.report import RESULTS, write_results

__all__ = ["main"]

_CELLS = tuple(
    (size, partitions, codec) for codec in ("none", "lz4") for partitions in (1, 8) for size in (100, 1000)
)
_RATES = (1_000, 10_000)
_OWN_GOAL = 0.8


@dataclass(frozen=True)
class Plan:
    """How much each part measures."""

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

    def includes(self, part: str) -> bool:
        return not self.only or part in self.only


class Comparison:
    """Two servers and their figures, round by round."""

    def __init__(self, guarantee: str, peer: str, plan: Plan, ours: Launch, theirs: Launch) -> None:
        self.guarantee = guarantee
        self.peer = peer
        self.plan = plan
        self._launches = {"headrace": ours, "kafka": theirs}
        self._figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._units: dict[str, tuple[str, float]] = {}
        self._own: list[dict[str, Any]] = []
        self.both: list[MeasuredServer] = []

    def note(self, who: MeasuredServer, name: str, value: float, unit: str, goal: float = 1.0) -> None:
        self._figures[name][who.name].append(value)
        self._units[name] = (unit, goal)
        print(f"  {self.guarantee}: {name}: {who.name} {value:,.2f} {unit}", flush=True)

    def note_own(self, name: str, peer: str, us: list[float], them: list[float], unit: str) -> None:
        """Note figures that compare Headrace with Headrace in another state."""
        print(f"  {self.guarantee}: {name}: {us} beside {them} {unit}", flush=True)
        self._own.append(
            {"name": name, "peer": peer, "us": us, "them": them, "unit": unit, "goal": _OWN_GOAL}
        )

    def rounds(self) -> Iterator[MeasuredServer]:
        """Yield the servers in alternating order."""
        for number in range(self.plan.rounds):
            yield from self.both if number % 2 else reversed(self.both)

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for name, (unit, goal) in self._units.items():
            us, them = self._figures[name]["headrace"], self._figures[name]["kafka"]
            rows.append(
                {"name": f"{name} ({self.guarantee})", "peer": self.peer, "us": us, "them": them}
                | {"unit": unit, "goal": goal}
            )
        return rows + [{**row, "name": f"{row['name']} ({self.guarantee})"} for row in self._own]

    def run(self) -> None:
        plan = self.plan
        # One round fewer: the servers also start for the other measurements, which counts as a round.
        for _ in range(plan.rounds - 1) if plan.includes("start") else ():
            for name, launch in self._launches.items():
                server = MeasuredServer(name, launch)
                try:
                    self._note_start(server)
                finally:
                    server.stop()
        try:
            for name, launch in self._launches.items():
                self.both.append(MeasuredServer(name, launch))
                if plan.includes("start"):
                    self._note_start(self.both[-1])
            for server in self.both:
                self._warm(server)
            for part, measure in (
                ("throughput", self._throughput),
                ("java", self._java),
                ("latency", self._latency),
                ("requests", self._requests),
                ("transactions", self._transactions),
                ("partitions", self._partitions),
            ):
                if plan.includes(part):
                    measure()
            if plan.includes("start"):
                for server in self.both:
                    self.note(server, "resident memory after load", server.rss_mb(), "MB", 5.0)
            if plan.includes("grown"):
                self._grown()
        finally:
            for server in self.both:
                server.stop()

    def _note_start(self, server: MeasuredServer) -> None:
        self.note(server, "start-up to the first answer", server.start_ms, "ms", 10.0)
        time.sleep(1)
        self.note(server, "resident memory at rest", server.rss_mb(), "MB", 5.0)

    def _warm(self, server: MeasuredServer) -> None:
        """Give Kafka's JIT compilers work until they have compiled the hot code. Headrace gets the same work."""
        plan = self.plan
        topic = server.topic()
        server.load("produce", topic, count=plan.messages, size=100)
        server.load("consume", topic, count=plan.messages)
        server.load("pipelined", topic, count=plan.awaited)
        server.drop(topic)

    def _throughput(self) -> None:
        for size, partitions, codec in self.plan.cells:
            count = self.plan.messages if size == 100 else self.plan.kilobytes
            cell = f"{size:,} B, {partitions} partition{'s' * (partitions > 1)}, {codec}"
            for server in self.rounds():
                topic = server.topic(partitions)
                wrote = server.load("produce", topic, count=count, size=size, codec=codec)
                self.note(server, f"produce, {cell}", wrote["rate"], "msg/s")
                read = server.load("consume", topic, count=count, partitions=partitions)
                self.note(server, f"consume, {cell}", read["rate"], "msg/s")
                for verb, figures in (("produced", wrote), ("consumed", read)):
                    # The kernel counts hundredths of a second, so 0 becomes 0.01.
                    cpu_s = max(figures["cpu_s"], 0.01) * 1e6 / count
                    self.note(server, f"server's CPU per million {verb}, {cell}", cpu_s, "CPU s")
                server.drop(topic)

    def _java(self) -> None:
        for server in self.rounds():
            topic = server.topic()
            figures = server.load("java_produce", topic, count=self.plan.messages, size=100)
            self.note(server, "produce, 100 B, 1 partition, none, Java client", figures["rate"], "msg/s")
            server.drop(topic)

    def _latency(self) -> None:
        for rate in self.plan.rates:
            for server in self.rounds():
                topic = server.topic()
                figures = server.load("latency", topic, rate=rate, seconds=self.plan.seconds)
                for name in ("p50", "p99", "p99.9"):
                    self.note(server, f"end to end at {rate:,}/s, {name}", figures[f"{name}_ms"], "ms")
                server.drop(topic)

    def _requests(self) -> None:
        for work, count, name in (
            ("pipelined", self.plan.requests, "small requests, pipelined"),
            ("one_by_one", self.plan.awaited, "small requests, one by one"),
        ):
            for server in self.rounds():
                topic = server.topic()
                figures = server.load(work, topic, count=count)
                self.note(server, name, figures["rate"], "requests/s")
                cpu_s = max(figures["cpu_s"], 0.01) * 1e6 / count
                self.note(server, f"server's CPU per million {name}", cpu_s, "CPU s")

    def _transactions(self) -> None:
        for server in self.rounds():
            topic = server.topic()
            figures = server.load("transactions", topic, count=self.plan.transactions, records=10)
            self.note(server, "transactions of 10 messages", figures["rate"], "transactions/s")

    def _partitions(self) -> None:
        many = self.plan.partitions
        cost: dict[int, list[float]] = defaultdict(list)
        for partitions in (1, many):
            topics = {server.name: server.topic(partitions) for server in self.both}
            for server in self.rounds():
                topic = topics[server.name]
                figures = server.load("produce", topic, count=self.plan.messages, size=100)
                if partitions > 1:
                    name = f"produce, 100 B, {many:,} partitions, none"
                    self.note(server, name, figures["rate"], "msg/s")
                if server.name == "headrace":
                    cost[partitions].append(max(figures["cpu_s"], 0.01) * 1e6 / self.plan.messages)
            for server in self.both:
                server.drop(topics[server.name])
        self.note_own(
            f"server's CPU per million produced, {many:,} partitions",
            "Headrace with 1 partition",
            cost[many],
            cost[1],
            "CPU s",
        )

    def _grown(self) -> None:
        """Measure Headrace against itself: with a megabyte in the log, and with ``grown_bytes``."""
        us = next(server for server in self.both if server.name == "headrace")
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

    def scaled(number: int) -> int:
        return max(1, round(number * float(options.scale)))

    return Plan(
        rounds=options.rounds,
        messages=scaled(1_000_000),
        kilobytes=scaled(200_000),
        seconds=max(2, scaled(4)),
        requests=scaled(10_000),
        awaited=scaled(2_000),
        transactions=scaled(500),
        partitions=1_000,
        grown_bytes=round(options.grown_gb * 2**30),
        only=only,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small amount of everything, as a smoke test")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for the amount of work (default 1.0)"
    )
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts to measure: " + ", ".join(_PARTS))
    parser.add_argument(
        "--grown-gb", type=float, default=2.0, help="gigabytes in the grown log (default 2.0)"
    )
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
