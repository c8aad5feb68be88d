"""The log beside Apache Kafka: throughput, latency, memory and start-up, measured in one run on one machine.

    python -m bench.log [--messages N] [--rounds N]

Both servers run with their defaults, one at a time, each in a process of its own; the client is the same
librdkafka. Kafka gets the heap it ships with (1 GB) and a warm-up, for its compilers need one. Each figure is
the median of the rounds, which alternate between the servers so that a noisy moment of the machine hits both.
Kafka's default does not wait for the disk; ours does. So the like-for-like rows are those of durability
``os`` against Kafka's default and of ``synced`` against Kafka with ``flush.messages=1``; ``synced`` against
Kafka's default is what a user meets.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.machine import write_machine
from bench.report import write_results
from tests.support import apache_kafka
from tests.support.apache_kafka import start_kafka
from tests.support.embedded import start_headrace
from tests.support.server import Server

__all__ = ["main"]

_KAFKA_JVM = ["-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true"]
_SIZE = 100

Figures = dict[str, float]


def _load(work: str, server: Server, topic: str, *numbers: int) -> Figures:
    command = [sys.executable, "-m", "bench.load", work, server.bootstrap, topic, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(f"{work} against {server.name} failed:\n{done.stdout}{done.stderr}")
    return dict(json.loads(done.stdout))


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def _create(server: Server, topic: str, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=configs)]).values():
        future.result()


def _measure(
    name: str, start: Callable[[Path], Server], messages: int, round_number: int, configs: dict[str, str]
) -> Figures:
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    began = time.perf_counter()
    server = start(home)
    figures: Figures = {"start_ms": (time.perf_counter() - began) * 1000}
    try:
        time.sleep(1)
        figures["idle_mb"] = _rss_mb(server.process.pid)
        _create(server, "warm", configs)
        _load("produce", server, "warm", messages // 4, _SIZE)
        _create(server, "main", configs)
        figures["produce"] = _load("produce", server, "main", messages, _SIZE)["rate"]
        figures["consume"] = _load("consume", server, "main", messages)["rate"]
        _create(server, "one", configs)
        _load("latency", server, "one", 300)
        _create(server, "two", configs)
        spans = _load("latency", server, "two", 2000)
        figures["latency_p50_ms"], figures["latency_p99_ms"] = spans["p50_ms"], spans["p99_ms"]
        figures["ack_p50_ms"] = _load("acks", server, "two", 1000)["p50_ms"]
        figures["loaded_mb"] = _rss_mb(server.process.pid)
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
    shown = ", ".join(f"{key} {value:,.2f}" for key, value in figures.items())
    print(f"round {round_number + 1}, {name}: {shown}", flush=True)
    return figures


def _row(name: str, peer: str, us: float, them: float, unit: str, goal: float) -> dict[str, object]:
    return {"name": name, "peer": peer, "us": us, "them": them, "unit": unit, "goal": goal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    apache_kafka.JVM = _KAFKA_JVM
    os.environ.setdefault("PYTHONUNBUFFERED", "1")

    def kafka(home: Path) -> Server:
        return start_kafka(home)

    contestants: dict[str, tuple[Callable[[Path], Server], dict[str, str]]] = {
        "headrace synced": (lambda home: start_headrace(home, ["--durability", "synced"]), {}),
        "headrace os": (lambda home: start_headrace(home, ["--durability", "os"]), {}),
        "kafka": (kafka, {}),
        "kafka flushed": (kafka, {"flush.messages": "1"}),
    }
    rounds: dict[str, list[Figures]] = {name: [] for name in contestants}
    for number in range(options.rounds):
        for name, (start, configs) in contestants.items():
            rounds[name].append(_measure(name, start, options.messages, number, configs))

    def median(name: str, figure: str) -> float:
        return statistics.median(figures[figure] for figures in rounds[name])

    rows = []
    for ours, theirs, peer in (
        ("headrace synced", "kafka", "Apache Kafka 4.3 default (does not wait for the disk)"),
        ("headrace os", "kafka", "Apache Kafka 4.3 default (does not wait for the disk)"),
        ("headrace synced", "kafka flushed", "Apache Kafka 4.3, flush.messages=1"),
    ):
        level = ours.split()[1]
        for figure, unit, goal in (
            ("produce", "msg/s", 1.0),
            ("consume", "msg/s", 1.0),
            ("latency_p50_ms", "ms", 1.0),
            ("latency_p99_ms", "ms", 1.0),
            ("ack_p50_ms", "ms", 1.0),
        ):
            rows.append(
                _row(f"{figure} ({level})", peer, median(ours, figure), median(theirs, figure), unit, goal)
            )
    for figure, unit, goal in (("idle_mb", "MB", 8.0), ("loaded_mb", "MB", 8.0), ("start_ms", "ms", 4.0)):
        rows.append(
            _row(
                figure,
                "Apache Kafka 4.3",
                median("headrace synced", figure),
                median("kafka", figure),
                unit,
                goal,
            )
        )
    write_results("log", rows)
    write_machine()


if __name__ == "__main__":
    main()
