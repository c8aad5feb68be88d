"""What benchmarks made of parts have in common: their options, their broker, and rows that are kept part by part."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from bench.machine import write_machine
from bench.measured import Measured
from bench.report import RESULTS, earlier_rows, write_results
from tests.support.embedded import start_headrace
from tests.support.server import Server

__all__ = ["Sitting", "parser"]

_QUICK = RESULTS.parents[1] / "build" / "bench"


class _Stand(Protocol):
    measured: Measured


S = TypeVar("S", bound=_Stand)


def parser(description: str | None, parts: Iterable[str], quick: str) -> argparse.ArgumentParser:
    """The options that all have; ``quick`` tells what is left of a quick run."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument(
        "--only", nargs="+", metavar="PART", choices=parts, help="others keep the rows that they have"
    )
    made.add_argument("--results", type=Path, help="bench/results, or build/bench of a quick run")
    return made


@dataclass
class Sitting:
    """One run of the benchmark ``name``, with the options that its user has given."""

    name: str
    options: argparse.Namespace
    began: float = field(default_factory=time.monotonic)

    @property
    def results(self) -> Path:
        given: Path | None = self.options.results
        return given or (_QUICK if self.options.quick else RESULTS)

    @contextlib.contextmanager
    def broker(self) -> Iterator[tuple[Server, Path]]:
        """A broker of ours, and a folder, for as long as it takes."""
        print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
            home = Path(folder)
            server = start_headrace(home / "broker")
            try:
                yield server, home
            finally:
                server.stop()

    def measure(self, stand: S, parts: Mapping[str, Callable[[S], None]]) -> None:
        """Rows are written after every part: what comes later may take an hour, or fail."""
        for part, measure in parts.items():
            print(f"{part}, after {time.monotonic() - self.began:.0f} s", flush=True)
            measure(stand)
            earlier = earlier_rows(self.name, self.results)
            write_results(self.name, stand.measured.rows(), self.results, beside=earlier)
        rows = stand.measured.rows()
        beside = earlier_rows(self.name, self.results) if self.options.only else []
        path = write_results(self.name, rows, self.results, beside=beside)
        write_machine(self.results)
        print(f"{len(rows)} rows in {path}, after {time.monotonic() - self.began:.0f} s")
