"""Fault X2, power loss, on simulated disks: a few runs of ``faults.simulation.power_loss``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from faults.seeds import drawn_seeds
from faults.simulation import power_loss
from faults.simulation.power_loss import UNPROTECTED, run
from tests.crash.verdicts import expect_caught


@pytest.mark.parametrize("seed", drawn_seeds(5))
def test_a_power_loss_at_any_file_operation_loses_no_acknowledged_or_delivered_record(seed: int) -> None:
    outcome = run(seed)
    assert outcome.held, outcome.report()


@pytest.mark.soak
@pytest.mark.parametrize("protection", UNPROTECTED)
def test_the_oracle_detects_each_missing_protection(protection: str) -> None:
    expect_caught(power_loss, protection, tries=10, isolated=False, processes=6)


def test_a_seed_replays_the_same_file_operations_in_another_process() -> None:
    command = "from faults.simulation.power_loss import run; print(run(2, processes=3).figures)"

    def replay(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [sys.executable, "-c", command], env=environment, check=True, capture_output=True, text=True
        ).stdout

    first = replay("1")
    assert "trace" in first
    assert first == replay("2")
