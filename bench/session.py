"""What the benchmark suites share: options, the broker, and results that are written after each part."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench.machine import write_machine
from bench.report import RESULTS, earlier_rows, write_results
from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server

__all__ = ["Figures", "Session", "parser"]


class Figures:
    def __init__(self) -> None:
        self._figures: dict[tuple[str, str, str, float | None], dict[str, list[float]]] = defaultdict(
            lambda: {"us": [], "them": []}
        )

    def note(self, who: str, name: str, peer: str, value: float, unit: str, goal: float | None = 1.0) -> None:
        """Record one figure of one round. ``who`` is us or them. A row without a goal has no verdict."""
        self._figures[name, peer, unit, goal][who].append(value)
        print(f"  {name}: {who} {value:,.2f} {unit}, load {os.getloadavg()[0]:.1f}", flush=True)

    def add_comparison(
        self, name: str, peer: str, us: float, them: float, unit: str, goal: float | None = 1.0
    ) -> None:
        self.note("us", name, peer, us, unit, goal)
        self.note("them", name, peer, them, unit, goal)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "peer": peer, **both, "unit": unit, "goal": goal}
            for (name, peer, unit, goal), both in self._figures.items()
        ]


_QUICK = RESULTS.parents[1] / "build" / "bench"


class _Context(Protocol):
    figures: Figures


S = TypeVar("S", bound=_Context)


def parser(description: str | None, parts: Iterable[str], quick: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every suite. ``quick`` is the help text of ``--quick``."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--quick", action="store_true", help=quick)
    arguments.add_argument("--rounds", type=int, default=3, help="rounds per measurement (default 3)")
    arguments.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        choices=parts,
        help="measure only these parts; the results file keeps the earlier rows of the others",
    )
    arguments.add_argument(
        "--results",
        type=Path,
        help="folder for the results (default: bench/results, with --quick build/bench)",
    )
    return arguments


@dataclass
class Session:
    """One run of the suite ``name`` with its options."""

    name: str
    options: argparse.Namespace
    began: float = field(default_factory=time.monotonic)

    @property
    def results(self) -> Path:
        folder: Path | None = self.options.results
        return folder or (_QUICK if self.options.quick else RESULTS)

    @contextlib.contextmanager
    def broker(self) -> Iterator[tuple[Server, Path]]:
        """Yield a broker and a folder while the block runs."""
        print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
            home = Path(folder)
            server = start_headrace(home / "broker")
            try:
                yield server, home
            finally:
                server.stop()

    def measure(self, context: S, parts: Mapping[str, Callable[[S], None]]) -> None:
        """Measure the parts in order, and write the rows after each, because a later part can take an hour, or fail."""
        for part, measure in parts.items():
            print(f"{part}, after {time.monotonic() - self.began:.0f} s", flush=True)
            measure(context)
            earlier = earlier_rows(self.name, self.results)
            write_results(self.name, context.figures.rows(), self.results, earlier=earlier)
        rows = context.figures.rows()
        kept_rows = earlier_rows(self.name, self.results) if self.options.only else []
        path = write_results(self.name, rows, self.results, earlier=kept_rows)
        write_machine(self.results)
        print(f"{len(rows)} rows in {path}, after {time.monotonic() - self.began:.0f} s")
