"""Every operation of a story fails once; ``bench/faults/operations.py`` tells it. A share of the operations here."""

from __future__ import annotations

import pytest

from bench.faults.operations import UNPROTECTED, count, run
from bench.faults.seeds import seeds


def test_the_story_is_long_enough_to_be_worth_telling() -> None:
    assert count() > 300


@pytest.mark.parametrize("seed", seeds(2, first=20))
def test_an_operation_that_fails_once_costs_nothing_that_was_acknowledged(seed: int) -> None:
    outcome = run(seed)
    assert outcome.held, outcome.says()


@pytest.mark.parametrize("protection", UNPROTECTED)
def test_without_its_protection_the_oracle_objects(protection: str) -> None:
    assert any(run(seed, protected=False, without=protection).caught for seed in range(1, 11))
