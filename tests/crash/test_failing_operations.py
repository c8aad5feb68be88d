"""Every file operation of a scripted broker run fails once: a small subset of ``simulation.failing_operations``."""

from __future__ import annotations

import errno

import pytest

from faults.protocol.batches import build_batch
from faults.seeds import drawn_seeds
from faults.simulation import failing_operations
from faults.simulation.failing_operations import UNPROTECTED, count, run
from faults.simulation.machine import Machine
from faults.simulation.requests import SimulatedBroker
from tests.crash.verdicts import expect_caught

STORAGE_ERROR = 56
BATCH = build_batch([b"value"], 1_700_000_000_000)


def test_the_script_has_more_than_300_file_operations() -> None:
    assert count() > 300


@pytest.mark.parametrize("seed", drawn_seeds(1))
def test_an_operation_that_fails_once_loses_no_acknowledged_record(seed: int) -> None:
    outcome = run(seed, cases=30)
    assert outcome.held, outcome.report()


@pytest.mark.soak
@pytest.mark.parametrize("protection", UNPROTECTED)
def test_the_oracle_detects_each_missing_protection(protection: str) -> None:
    expect_caught(failing_operations, protection, tries=10, isolated=False)


def test_creating_a_topic_without_its_files_fails_and_the_next_start_creates_them() -> None:
    problems: list[str] = []
    machine = Machine(1, problems.append)

    async def create() -> None:
        broker = SimulatedBroker(machine.files, machine.clock)
        await broker.start()
        machine.files.fail("create", path="*/topics/*.log", error=errno.ENOSPC)
        assert (await broker.create_topic("topic", 2, {}))[0] == STORAGE_ERROR
        assert (await broker.produce("topic", 0, BATCH))[0] == STORAGE_ERROR
        assert (await broker.produce("topic", 1, BATCH))[0] == 0
        await broker.stop()

    async def check_log() -> None:
        broker = SimulatedBroker(machine.files, machine.clock)
        await broker.start()
        assert (await broker.produce("topic", 0, BATCH)) == (0, 0)
        assert (await broker.produce("topic", 1, BATCH)) == (0, 1)
        await broker.stop()

    machine.run_process(create)
    machine.end("kill")
    machine.run_process(check_log)
    assert problems == []
