"""X2, power loss, on simulated disks; ``bench/faults/x2_power.py`` says what must hold."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.faults import x2_power
from bench.faults.seeds import seeds
from bench.faults.x2_power import UNPROTECTED, run
from tests.crash.verdicts import expect_caught


@pytest.mark.parametrize("seed", seeds(8))
def test_a_power_loss_at_any_operation_loses_nothing_that_was_acknowledged_or_given(seed: int) -> None:
    outcome = run(seed)
    assert outcome.held, outcome.says()


@pytest.mark.parametrize("protection", UNPROTECTED)
def test_without_its_protection_the_oracle_objects(protection: str) -> None:
    expect_caught(x2_power, protection, tries=10, apart=False, lives=6)


def test_a_seed_replays_the_same_operations_in_another_process() -> None:
    command = "from bench.faults.x2_power import run; print(run(2, lives=3).figures)"

    def replay(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [sys.executable, "-c", command], env=environment, check=True, capture_output=True, text=True
        ).stdout

    first = replay("1")
    assert "trace" in first
    assert first == replay("2")
