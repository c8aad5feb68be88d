"""What the continuous backup costs the producers: the same broker with a backup and without, turn by turn.

    python -m bench.backup [--quick] [--rounds N] [--scale X] [--every-ms MS] [--results DIR]

Both are up at the same time; one rests while the other works. The backup goes to a folder on the same disk, which is
the worst place for it, and a moment is taken far more often than is usual. Figures are medians of the rounds; a ratio
of 1 means that the backup costs nothing.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.contestant import Contestant, Launch
from bench.machine import write_machine
from bench.report import RESULTS, write_results
from headrace.broker.backup.choosing import choose
from headrace.broker.backup.folder import BackupFolder
from tests.support.embedded import start_headrace
from tests.support.waiting import until

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
        for (name, unit), found in self._figures.items():
            yield {"name": name, "peer": _PEER, "us": found["us"], "them": found["them"]} | {
                "unit": unit,
                "goal": _GOAL,
            }


def _round(one: Contestant, who: str, promise: str, options: argparse.Namespace, measured: Measured) -> None:
    count = max(1, round((2_000 if options.quick else 1_000_000) * options.scale))
    topic = one.topic()
    wrote = one.load("produce", topic, count=count, size=100)
    measured.note(f"produce, 100 B, backed up ({promise})", "msg/s", who, wrote["rate"])
    cpu_s = max(wrote["cpu_s"], 0.01) * 1e6 / count
    measured.note(f"server's CPU per million produced, backed up ({promise})", "CPU s", who, cpu_s)
    if who == "us":
        _expect_backed_up(one, count)
    one.drop(topic)
    topic = one.topic()
    figures = one.load("latency", topic, rate=1_000, seconds=1 if options.quick else 5)
    for name in ("p50", "p99"):
        measured.note(
            f"end to end at 1,000/s, {name}, backed up ({promise})", "ms", who, figures[f"{name}_ms"]
        )
    one.drop(topic)


def _expect_backed_up(one: Contestant, count: int) -> None:
    """It counts only if the backup has done its work."""
    folder = BackupFolder(one.server.data.parent / "backup")
    until(lambda: choose(folder).records() >= count, f"{count} records in the backup")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a little of everything: does it run at all?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the usual work")
    parser.add_argument("--every-ms", type=int, default=500, help="how often a moment is taken")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    measured = Measured()
    for promise, durability in (("page cache", "os"), ("synced", "synced")):
        both: list[tuple[str, Contestant]] = []
        try:
            for who, every_ms in (("us", options.every_ms), ("them", None)):
                both.append((who, Contestant(who, _launch(every_ms, durability))))
            for number in range(1 if options.quick else options.rounds):
                for who, one in both if number % 2 else reversed(both):
                    _round(one, who, promise, options, measured)
        finally:
            for _, one in both:
                one.stop()
    rows = list(measured.rows())
    print(f"{len(rows)} rows in {write_results('backup', rows, options.results)}")
    write_machine(options.results)


if __name__ == "__main__":
    main()
