"""Values that harm whoever reads them carelessly: a quick share of ``bench.faults.x26_poison``."""

from __future__ import annotations

import pytest

from bench.faults import x26_poison
from tests.crash.verdicts import expect_caught, expect_held


def test_a_poison_value_is_derived_unaltered_or_is_a_dead_letter_with_its_bytes() -> None:
    expect_held(x26_poison.run(1))


@pytest.mark.parametrize("without", x26_poison.UNPROTECTED)
def test_values_that_are_read_without_care_are_caught(without: str) -> None:
    expect_caught(
        lambda seed: x26_poison.run(seed, protected=False, without=without, values=60),
        lambda one: one.caught,
        3,
    )
