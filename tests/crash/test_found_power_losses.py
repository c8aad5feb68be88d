"""Bugs that simulated power losses revealed, each with the shortest sequence of operations that reproduces it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from faults.disk.faulty_files import FaultyFiles
from faults.protocol.batches import build_batch
from faults.simulation.machine import Machine
from faults.simulation.requests import SimulatedBroker
from headrace.broker.storage.data_dir import DataDir

DATA = Path("/disk/data")
OUTCOMES = 60
BATCH = build_batch([b"value"], 1_700_000_000_000)


def test_the_data_directory_survives_a_power_loss_after_the_first_start() -> None:
    files = FaultyFiles(seed=1)
    first = DataDir(files, DATA)
    for _ in range(OUTCOMES):
        survivor = files.crash()
        assert survivor.exists(DATA / "headrace.json")
        assert DataDir(survivor, DATA).identity.cluster_id == first.identity.cluster_id


def test_a_batch_acknowledged_after_a_killed_topic_creation_survives_a_power_loss() -> None:
    problems: list[str] = []
    for operation in range(30, 50):
        machine = Machine(operation, problems.append)
        machine.run_process(partial(create_and_produce, machine), end_at=operation)
        machine.end("kill")
        machine.run_process(partial(create_and_produce, machine))
        last = machine.files
        for _ in range(4):
            machine.files = last.crash()
            machine.run_process(partial(expect_one_batch, machine, problems))
        assert problems == [], f"killed at operation {operation}"


async def create_and_produce(machine: Machine) -> None:
    broker = SimulatedBroker(machine.files, machine.clock)
    await broker.start()
    if "topic" not in await broker.topics():
        await broker.create_topic("topic", 2, {})
    assert (await broker.produce("topic", 1, BATCH))[0] == 0


async def expect_one_batch(machine: Machine, problems: list[str]) -> None:
    broker = SimulatedBroker(machine.files, machine.clock)
    await broker.start()
    if "topic" not in await broker.topics():
        problems.append("the topic does not exist")
    elif (await broker.range("topic", 1))[1] < 1:
        problems.append("the acknowledged batch does not exist")
