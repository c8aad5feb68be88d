"""How a fault run is judged in a test: all of what it found is in the failure, with the seed that replays it."""

from __future__ import annotations

from collections.abc import Callable

from bench.faults.outcome import Outcome

__all__ = ["expect_caught", "expect_held"]


def expect_held(outcome: Outcome) -> Outcome:
    assert outcome.held, outcome.says()
    return outcome


def expect_caught(run: Callable[[int], Outcome], what: Callable[[Outcome], bool], tries: int = 12) -> Outcome:
    """One of a few runs without the protection must show ``what``; chance may spare some of them."""
    outcomes = []
    for seed in range(1, tries + 1):
        outcomes.append(run(seed))
        if what(outcomes[-1]):
            return outcomes[-1]
    raise AssertionError("not caught in:\n" + "\n".join(outcome.says() for outcome in outcomes))
