"""Seeds of fault runs. A seed determines all random choices of its run, so that the run can be replayed."""

from __future__ import annotations

import os
import random

__all__ = ["TEST_SEED", "VARIABLE", "drawn_seeds", "seeds"]

VARIABLE = "HEADRACE_SEED"
TEST_SEED = "HEADRACE_TEST_SEED"
_DRAWN_MIN, _DRAWN_MAX = 1_000, 2**31


def seeds(count: int, first: int = 1) -> list[int]:
    """Return ``count`` seeds starting at ``first``, or only the seed in ``HEADRACE_SEED``."""
    replayed = os.environ.get(VARIABLE)
    return [int(replayed)] if replayed else list(range(first, first + count))


def drawn_seeds(count: int) -> list[int]:
    """Return ``count`` seeds that differ in each test run, or only the seed in ``HEADRACE_SEED``.

    They are derived from ``HEADRACE_TEST_SEED``, so that all processes of a test run draw the same seeds. They are
    larger than the seeds of ``make soak``, which count from 1.
    """
    replayed = os.environ.get(VARIABLE)
    if replayed:
        return [int(replayed)]
    rng = random.Random(f"fault runs {os.environ.get(TEST_SEED, '')}")
    return [rng.randrange(_DRAWN_MIN, _DRAWN_MAX) for _ in range(count)]
