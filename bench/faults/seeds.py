"""Which runs to make: every run is one seed, and the seed replays its choices."""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "seeds"]

VARIABLE = "HEADRACE_SEED"


def seeds(count: int, first: int = 1) -> list[int]:
    """``count`` seeds from ``first`` on; just the one that the environment names, if it does."""
    wanted = os.environ.get(VARIABLE)
    return [int(wanted)] if wanted else list(range(first, first + count))
