"""The cost of the continuous backup for producers: the same broker with and without a backup, in alternating rounds.

    python -m bench.log.backup [--quick] [--rounds N] [--scale X] [--every-ms MS] [--results DIR]

Both brokers run at the same time; one is idle while the other works. The backup is written to a folder on the same
disk, where it slows the broker down most, and far more often than usual. Figures are medians of the rounds. A ratio of
1 means that the backup costs nothing.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.log.log_server import Launch, MeasuredServer
from bench.machine import write_machine
from bench.report import RESULTS, write_results
from faults.servers.headrace_broker import start_headrace
from faults.wait import until
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.restore_points import choose

__all__ = ["main"]

_GOAL = 0.8
_PEER = "Headrace without a backup"


def _launch(every_ms: int | None, durability: str) -> Launch:
    def begin(home: Path) -> Any:
        options = ["--durability", durability]
        if every_ms is not None:
            folder = home / "backup"
            folder.mkdir(exist_ok=True)
            options += ["--backup", str(folder), "--backup-every-ms", str(every_ms)]
        return start_headrace(home, options)

    return begin


class Measured:
    def __init__(self) -> None:
        self._figures: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def note(self, name: str, unit: str, who: str, value: float) -> None:
        print(f"  {name}: {who} {value:,.2f} {unit}", flush=True)
        self._figures[name, unit][who].append(value)

    def rows(self) -> Iterator[dict[str, Any]]:
        for (name, unit), rounds in self._figures.items():
            yield {"name": name, "peer": _PEER, "us": rounds["us"], "them": rounds["them"]} | {
                "unit": unit,
                "goal": _GOAL,
            }


def _round(
    server: MeasuredServer, who: str, guarantee: str, options: argparse.Namespace, measured: Measured
) -> None:
    count = max(1, round((2_000 if options.quick else 1_000_000) * options.scale))
    topic = server.topic()
    wrote = server.load("produce", topic, count=count, size=100)
    measured.note(f"produce, 100 B, backed up ({guarantee})", "msg/s", who, wrote["rate"])
    cpu_s = max(wrote["cpu_s"], 0.01) * 1e6 / count
    measured.note(f"server's CPU per million produced, backed up ({guarantee})", "CPU s", who, cpu_s)
    if who == "us":
        _wait_for_backup(server, count)
    server.drop(topic)
    topic = server.topic()
    figures = server.load("latency", topic, rate=1_000, seconds=1 if options.quick else 5)
    for name in ("p50", "p99"):
        measured.note(
            f"end to end at 1,000/s, {name}, backed up ({guarantee})", "ms", who, figures[f"{name}_ms"]
        )
    server.drop(topic)


def _wait_for_backup(server: MeasuredServer, count: int) -> None:
    """Wait until the backup has all records: a round without a complete backup does not count."""
    folder = BackupFolder(server.server.data.parent / "backup")
    until(lambda: choose(folder).record_count() >= count, f"{count} records in the backup")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small amount of everything, as a smoke test")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for the amount of work (default 1.0)"
    )
    parser.add_argument(
        "--every-ms", type=int, default=500, help="milliseconds between restore points (default 500)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    measured = Measured()
    for guarantee, durability in (("page cache", "os"), ("synced", "synced")):
        both: list[tuple[str, MeasuredServer]] = []
        try:
            for who, every_ms in (("us", options.every_ms), ("them", None)):
                both.append((who, MeasuredServer(who, _launch(every_ms, durability))))
            for number in range(1 if options.quick else options.rounds):
                for who, server in both if number % 2 else reversed(both):
                    _round(server, who, guarantee, options, measured)
        finally:
            for _, server in both:
                server.stop()
    rows = list(measured.rows())
    print(f"{len(rows)} rows in {write_results('backup', rows, options.results)}")
    write_machine(options.results)


if __name__ == "__main__":
    main()
