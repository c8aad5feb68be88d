"""Assertions about fault runs. A failed assertion shows all findings and the seed that replays the run."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from faults.outcome import Outcome
from faults.run_process import run_in_process

__all__ = ["expect_caught", "expect_no_problems"]


def expect_no_problems(outcome: Outcome) -> Outcome:
    assert outcome.held, outcome.report()
    return outcome


def expect_caught(
    module: ModuleType,
    without: str,
    *,
    tries: int = 12,
    isolated: bool = True,
    first: int = 1,
    **run_options: Any,
) -> Outcome:
    """Assert that at least one of ``tries`` runs without the protection shows the finding that the module expects. The
    others may pass by chance. ``isolated``: execute the runs in another process.
    """
    outcomes = []
    for seed in range(first, first + tries):
        options = {**run_options, "protected": False, "without": without}
        outcomes.append(run_in_process(module, seed, **options) if isolated else module.run(seed, **options))
        if outcomes[-1].has_finding(module.UNPROTECTED[without]):
            return outcomes[-1]
    reports = "\n".join(outcome.report() for outcome in outcomes)
    raise AssertionError(f"no run without {without} shows {module.UNPROTECTED[without]!r}:\n{reports}")
