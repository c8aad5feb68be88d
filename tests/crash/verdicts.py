"""How a fault run is judged in a test: all of what it found is in the failure, with the seed that replays it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from bench.faults.apart import run_apart
from bench.faults.outcome import Outcome

__all__ = ["expect_caught", "expect_held"]


def expect_held(outcome: Outcome) -> Outcome:
    assert outcome.held, outcome.says()
    return outcome


def expect_caught(
    module: ModuleType, without: str, *, tries: int = 12, apart: bool = True, first: int = 1, **how: Any
) -> Outcome:
    """One of a few runs without the protection must show the finding that the module names for it; chance may spare
    some of them. ``apart``: in a process of its own.
    """
    outcomes = []
    for seed in range(first, first + tries):
        asked = {**how, "protected": False, "without": without}
        outcomes.append(run_apart(module, seed, **asked) if apart else module.run(seed, **asked))
        if outcomes[-1].shows(module.UNPROTECTED[without]):
            return outcomes[-1]
    told = "\n".join(outcome.says() for outcome in outcomes)
    raise AssertionError(f"without {without} nothing shows {module.UNPROTECTED[without]!r}:\n{told}")
