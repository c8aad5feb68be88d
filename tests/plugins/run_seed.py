"""One random seed per test run, printed in the header: the fault runs of ``drawn_seeds`` and Hypothesis use it.

``HEADRACE_TEST_SEED=N`` replays the whole run; a failed fault run also prints ``HEADRACE_SEED=N``, which replays it
alone. A seed that found a fault becomes a fixed case of its test.
"""

from __future__ import annotations

import os
import random

import pytest

from faults.seeds import TEST_SEED


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # The processes of a run inherit the variable, so all of them draw the same seeds.
    seed = os.environ.setdefault(TEST_SEED, str(random.randrange(2**31)))
    if getattr(config.option, "hypothesis_seed", "unknown") is None:
        config.option.hypothesis_seed = seed


def pytest_report_header() -> str:
    return f"test seed: {os.environ[TEST_SEED]} (replay with {TEST_SEED}={os.environ[TEST_SEED]})"
