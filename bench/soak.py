"""The crash and fault runs at full count: ``python -m bench.soak [--only X1,X4] [--runs N] [--first SEED] [--fresh]``.

It prints a line per run, and all problems of a failed run, with the seed that replays it (``HEADRACE_SEED=17 python -m
bench.soak --only X1``). Runs are saved in ``build/soak.jsonl`` and are not repeated while the code that the fault
covers stays the same, so a soak can be interrupted and resumed. ``--fresh`` starts over.

A fault with its full number of runs gets its row in ``bench/results/faults.json``. A fault that fails gets its row
there after any number of runs, with the failed seeds, and the soak exits with 1. ``--results`` selects another folder
for both files.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.report import RESULTS, write_faults
from faults import FAULTS, Fault
from faults.covered_code import code_digest, commit_of
from faults.outcome import Outcome
from faults.run_process import run_in_process
from faults.saved_runs import SAVED_RUNS, SavedRuns
from faults.seeds import seeds
from faults.servers.fork_server import die_with_parent

__all__ = ["Tally", "main", "soak"]

_UNPROTECTED_TRIES = 10
_FAILURES_WRITTEN = 20
_FINDINGS_WRITTEN = 3
_FINDING_CHARS = 500
# Only the faults of the fault table have rows in the results.
_IN_TABLE = re.compile(r"X\d+")


@dataclass(slots=True)
class Tally:
    """The sums over the runs of one fault."""

    fault: Fault
    code: str
    """The digest of the covered code."""
    runs: int = 0
    hits: int = 0
    lost: int = 0
    duplicated: int = 0
    peak_rss_mb: float = 0.0
    seeds: list[int] = field(default_factory=list)
    failed: list[Outcome] = field(default_factory=list)
    not_caught: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.runs += outcome.cases
        self.hits += outcome.hits
        self.lost += outcome.lost
        self.duplicated += outcome.duplicated
        self.peak_rss_mb = max(self.peak_rss_mb, outcome.peak_rss_mb)
        if outcome.seed not in self.seeds:
            self.seeds.append(outcome.seed)
        if not outcome.held:
            self.failed.append(outcome)

    @property
    def held(self) -> bool:
        return bool(self.runs) and not self.failed and not self.not_caught

    def row(self) -> dict[str, Any]:
        covers = self.fault.covered_paths
        return {
            "fault": self.fault.name,
            "held": self.held,
            "runs": self.runs,
            "hits": self.hits,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "seeds": sorted(self.seeds),
            "caught_unprotected": not self.not_caught,
            "failures": self._failures(),
            "commit": commit_of(covers),
            "date": datetime.now(UTC).date().isoformat(),
            "code": self.code,
            "covers": covers,
        }

    def _failures(self) -> list[dict[str, Any]]:
        failed = [
            {
                "seed": outcome.seed,
                "problems": [_shortened(finding) for finding in outcome.findings[:_FINDINGS_WRITTEN]]
                or ["not hit"],
            }
            for outcome in sorted(self.failed, key=lambda outcome: outcome.seed)[:_FAILURES_WRITTEN]
        ]
        return failed + [
            {"seed": 0, "problems": [f"not caught without {protection}"]} for protection in self.not_caught
        ]


def _shortened(finding: str) -> str:
    """Keep the beginning and the end, because a traceback ends with the error."""
    half = _FINDING_CHARS // 2
    return finding if len(finding) <= _FINDING_CHARS else f"{finding[:half]} ... {finding[-half:]}"


def soak(fault: Fault, seeds: Sequence[int], saved: SavedRuns) -> Tally:
    tally = Tally(fault, code_digest(fault.covered_paths))
    for module in fault.load():
        name = module.__name__.removeprefix("faults.")
        for protection, finding in module.UNPROTECTED.items():
            began = time.monotonic()
            caught = _caught(tally, module, protection, finding, saved)
            seconds = time.monotonic() - began
            _print(
                f"{name} without {protection}: {'caught' if caught else 'NOT CAUGHT'}, after {seconds:.0f} s"
            )
            if not caught:
                tally.not_caught.append(protection)
        began = time.monotonic()
        module_seeds = seeds[: getattr(module, "RUNS", len(seeds))]
        for done, outcome in enumerate(_outcomes(tally, module, module_seeds, saved), 1):
            tally.add(outcome)
            seconds = time.monotonic() - began
            _print(
                f"{'' if outcome.held else 'FAILED '}{name}: {outcome.report()}"
                f"  [{done}/{len(module_seeds)}, {seconds:.0f} s]"
            )
    return tally


def _outcomes(tally: Tally, module: ModuleType, seeds: Sequence[int], saved: SavedRuns) -> Iterator[Outcome]:
    """Yield the saved runs first, then the other runs as they finish."""
    fault, name, missing = tally.fault, module.__name__, []
    for seed in seeds:
        outcome = saved.find(fault.name, name, seed, tally.code)
        if outcome is None:
            missing.append(seed)
        else:
            yield outcome
    for outcome in _run_all(fault, name, missing):
        saved.add(fault.name, name, tally.code, outcome)
        yield outcome


def _run_all(fault: Fault, module: str, seeds: Sequence[int]) -> Iterator[Outcome]:
    parallel_runs = fault.parallel_runs(module)
    if parallel_runs == 1 or len(seeds) <= 1:
        for seed in seeds:
            yield _run(fault.name, module, seed)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(parallel_runs, mp_context=context, initializer=die_with_parent) as pool:
        runs = [pool.submit(_run, fault.name, module, seed) for seed in seeds]
        for run in as_completed(runs):
            yield run.result()


def _run(fault: str, module: str, seed: int) -> Outcome:
    """Run one seed. An unexpected exception becomes a problem of the outcome, so that the other runs continue."""
    try:
        return run_in_process(importlib.import_module(module), seed)
    except Exception:
        return Outcome(fault, seed, problems=[traceback.format_exc()])


def _caught(tally: Tally, module: ModuleType, protection: str, finding: str, saved: SavedRuns) -> bool:
    """Return whether a run without the protection reports the problem. One run may pass by chance, so try several
    seeds.
    """
    fault, name = tally.fault.name, module.__name__
    for seed in range(1, _UNPROTECTED_TRIES + 1):
        outcome = saved.find(fault, name, seed, tally.code, protection)
        if outcome is None:
            try:
                outcome = run_in_process(module, seed, protected=False, without=protection)
            except Exception:
                # An exception does not show that the oracle works.
                _print(traceback.format_exc())
                continue
            saved.add(fault, name, tally.code, outcome, protection)
        if outcome.has_finding(finding):
            return True
    return False


def _print(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.soak", description="The crash and fault runs at full count.")
    parser.add_argument("--only", help="faults to run, separated by commas (default: all)", metavar="X1,X4")
    parser.add_argument(
        "--runs", type=int, help="runs per fault module (default: the full count)", metavar="N"
    )
    parser.add_argument("--first", type=int, default=1, help="first seed (default: 1)", metavar="SEED")
    parser.add_argument("--fresh", action="store_true", help="repeat saved runs")
    parser.add_argument(
        "--results",
        type=Path,
        help="folder for results and saved runs (default: bench/results and build)",
        metavar="FOLDER",
    )
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(FAULTS)
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        parser.error(f"unknown fault: {', '.join(unknown)}; the faults are {', '.join(FAULTS)}")
    saved = SavedRuns(options.results / SAVED_RUNS.name if options.results else SAVED_RUNS)
    all_held = True
    for name in names:
        fault = FAULTS[name]
        _print(f"{name}: {fault.title}")
        if options.fresh:
            saved.remove(name)
        run_seeds = seeds(options.runs or fault.runs, options.first)
        tally = soak(fault, run_seeds, saved)
        all_held = all_held and tally.held
        # A replay or a few runs do not replace the row of the full number of runs, unless they fail.
        if _IN_TABLE.fullmatch(name) and (len(run_seeds) >= fault.runs or not tally.held):
            write_faults([tally.row()], options.results or RESULTS)
        _print_tally(tally)
    return 0 if all_held else 1


def _print_tally(tally: Tally) -> None:
    _print(
        f"{tally.fault.name}: {'held' if tally.held else 'FAILED'}: {tally.runs} runs, {tally.hits} hits,"
        f" {tally.lost} lost, {tally.duplicated} duplicated, at most {tally.peak_rss_mb:.0f} MB,"
        f" {len(tally.failed)} failed runs"
        + (f", not caught without {', '.join(tally.not_caught)}" if tally.not_caught else "")
    )
    for outcome in tally.failed:
        _print(f"  {outcome.fault} seed {outcome.seed}: {'; '.join(outcome.findings[:2]) or 'not hit'}")


if __name__ == "__main__":
    sys.exit(main())
