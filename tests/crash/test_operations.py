"""Every operation of a story fails once; ``bench/faults/operations.py`` tells it. A share of the operations here."""

from __future__ import annotations

import errno

import pytest

from bench.faults import operations
from bench.faults.batches import build_batch
from bench.faults.operations import UNPROTECTED, count, run
from bench.faults.seeds import seeds
from bench.faults.sim_door import Door
from bench.faults.sim_machine import Machine
from tests.crash.verdicts import expect_caught

STORAGE_ERROR = 56
BATCH = build_batch([b"value"], 1_700_000_000_000)


def test_the_story_is_long_enough_to_be_worth_telling() -> None:
    assert count() > 300


@pytest.mark.parametrize("seed", seeds(2, first=20))
def test_an_operation_that_fails_once_costs_nothing_that_was_acknowledged(seed: int) -> None:
    outcome = run(seed)
    assert outcome.held, outcome.says()


@pytest.mark.parametrize("protection", UNPROTECTED)
def test_without_its_protection_the_oracle_objects(protection: str) -> None:
    expect_caught(operations, protection, tries=10, apart=False)


def test_a_topic_whose_files_cannot_be_made_is_an_error_and_is_made_by_the_next_start() -> None:
    objections: list[str] = []
    machine = Machine(1, objections.append)

    async def create() -> None:
        door = Door(machine.files, machine.clock)
        await door.start()
        machine.files.fail("create", path="*/topics/*.log", error=errno.ENOSPC)
        assert (await door.create_topic("topic", 2, {}))[0] == STORAGE_ERROR
        assert (await door.produce("topic", 0, BATCH))[0] == STORAGE_ERROR
        assert (await door.produce("topic", 1, BATCH))[0] == 0
        await door.stop()

    async def look() -> None:
        door = Door(machine.files, machine.clock)
        await door.start()
        assert (await door.produce("topic", 0, BATCH)) == (0, 0)
        assert (await door.produce("topic", 1, BATCH)) == (0, 1)
        await door.stop()

    machine.life(create)
    machine.end("kill")
    machine.life(look)
    assert objections == []
