"""The crash and fault runs at full count: ``python -m bench.soak [--only X1,X4] [--runs N] [--first SEED] [--fresh]``.

Prints a line for every run, and all of what a failed run found, with the seed that replays it
(``HEADRACE_SEED=17 python -m bench.soak --only X1``). A run is kept in ``build/soak.jsonl`` and not made again while
the code that the fault covers stays as it is, so a soak can be made in pieces; ``--fresh`` begins anew.

A fault whose full count is made gets its row in ``bench/results/faults.json``. A soak that fails writes its failure
there, whatever its count, with the failed seeds, and the exit code is 1.
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
from types import ModuleType
from typing import Any

from bench.faults import FAULTS, Fault
from bench.faults.apart import run_apart
from bench.faults.covered import code_digest, commit_of
from bench.faults.forking import die_with_parent
from bench.faults.kept_runs import KeptRuns
from bench.faults.outcome import Outcome
from bench.faults.seeds import seeds
from bench.report import write_faults

__all__ = ["Tally", "main", "soak"]

_UNPROTECTED_TRIES = 10
_FAILURES_WRITTEN = 20
_FINDINGS_WRITTEN = 3
_FINDING_CHARS = 500
# The results have the rows of the fault table; what else is run here has none.
_IN_TABLE = re.compile(r"X\d+")


@dataclass(slots=True)
class Tally:
    """The runs of one fault, summed up."""

    fault: Fault
    code: str
    """The digest of the code that it covers."""
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
        covers = self.fault.covers
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
                "problems": [_shortened(one) for one in outcome.findings[:_FINDINGS_WRITTEN]] or ["not hit"],
            }
            for outcome in sorted(self.failed, key=lambda outcome: outcome.seed)[:_FAILURES_WRITTEN]
        ]
        return failed + [{"seed": 0, "problems": [f"not caught without {one}"]} for one in self.not_caught]


def _shortened(finding: str) -> str:
    """Its beginning and its end, where a trace says what happened."""
    half = _FINDING_CHARS // 2
    return finding if len(finding) <= _FINDING_CHARS else f"{finding[:half]} ... {finding[-half:]}"


def soak(fault: Fault, wanted: Sequence[int], kept: KeptRuns) -> Tally:
    tally = Tally(fault, code_digest(fault.covers))
    for module in fault.load():
        for protection, finding in module.UNPROTECTED.items():
            caught = _caught(tally, module, protection, finding, kept)
            _say(f"{fault.name} without {protection}: {'caught' if caught else 'NOT CAUGHT'}")
            if not caught:
                tally.not_caught.append(protection)
        began = time.monotonic()
        some = wanted[: getattr(module, "RUNS", len(wanted))]
        for done, outcome in enumerate(_outcomes(tally, module, some, kept), 1):
            tally.add(outcome)
            if outcome.held:
                _say(f"{outcome.says()}  [{done}/{len(some)}, {time.monotonic() - began:.0f} s]")
            else:
                _say(f"FAILED {outcome.says()}")
    return tally


def _outcomes(tally: Tally, module: ModuleType, wanted: Sequence[int], kept: KeptRuns) -> Iterator[Outcome]:
    """Those that were made before, and the rest as they are made."""
    fault, name, missing = tally.fault, module.__name__, []
    for seed in wanted:
        known = kept.find(fault.name, name, seed, tally.code)
        if known is None:
            missing.append(seed)
        else:
            yield known
    for outcome in _made(fault, name, missing):
        kept.keep(fault.name, name, tally.code, outcome)
        yield outcome


def _made(fault: Fault, module: str, wanted: Sequence[int]) -> Iterator[Outcome]:
    if fault.at_once == 1 or len(wanted) <= 1:
        for seed in wanted:
            yield _one(fault.name, module, seed)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(fault.at_once, mp_context=context, initializer=die_with_parent) as pool:
        runs = [pool.submit(_one, fault.name, module, seed) for seed in wanted]
        for finished in as_completed(runs):
            yield finished.result()


def _one(fault: str, module: str, seed: int) -> Outcome:
    """One run. What it did not foresee is a finding, and the other runs go on."""
    try:
        return run_apart(importlib.import_module(module), seed)
    except Exception:
        return Outcome(fault, seed, problems=[traceback.format_exc()])


def _caught(tally: Tally, module: ModuleType, protection: str, finding: str, kept: KeptRuns) -> bool:
    """Chance may spare a run without its protection, but not many in a row."""
    fault, name = tally.fault.name, module.__name__
    for seed in range(1, _UNPROTECTED_TRIES + 1):
        outcome = kept.find(fault, name, seed, tally.code, protection)
        if outcome is None:
            try:
                outcome = run_apart(module, seed, protected=False, without=protection)
            except Exception:
                # A run that failed by itself shows nothing about the oracle.
                _say(traceback.format_exc())
                continue
            kept.keep(fault, name, tally.code, outcome, protection)
        if outcome.shows(finding):
            return True
    return False


def _say(line: str) -> None:
    print(line, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.soak", description="The crash and fault runs at full count.")
    parser.add_argument("--only", help="faults by name, with commas between them", metavar="X1,X4")
    parser.add_argument("--runs", type=int, help="runs of each, instead of the full count", metavar="N")
    parser.add_argument("--first", type=int, default=1, help="the first seed", metavar="SEED")
    parser.add_argument("--fresh", action="store_true", help="make all runs anew, also those that are kept")
    options = parser.parse_args(words)
    names = options.only.split(",") if options.only else list(FAULTS)
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    kept, all_held = KeptRuns(), True
    for name in names:
        fault = FAULTS[name]
        _say(f"{name}: {fault.title}")
        if options.fresh:
            kept.forget(name)
        wanted = seeds(options.runs or fault.runs, options.first)
        tally = soak(fault, wanted, kept)
        all_held = all_held and tally.held
        # A replay, or a few runs, does not take the place of the full count, unless it fails.
        if _IN_TABLE.fullmatch(name) and (len(wanted) >= fault.runs or not tally.held):
            write_faults([tally.row()])
        _tell(tally)
    return 0 if all_held else 1


def _tell(tally: Tally) -> None:
    _say(
        f"{tally.fault.name}: {'held' if tally.held else 'FAILED'}: {tally.runs} runs, {tally.hits} hits,"
        f" {tally.lost} lost, {tally.duplicated} duplicated, at most {tally.peak_rss_mb:.0f} MB,"
        f" {len(tally.failed)} failed runs"
        + (f", not caught without {', '.join(tally.not_caught)}" if tally.not_caught else "")
    )
    for outcome in tally.failed:
        _say(f"  {outcome.fault} seed {outcome.seed}: {'; '.join(outcome.findings[:2]) or 'not hit'}")


if __name__ == "__main__":
    sys.exit(main())
