"""What simulated power losses found, each as the shortest story that shows it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.faults.batches import build_batch
from bench.faults.sim_door import Door
from bench.faults.sim_machine import Machine
from headrace.broker.data_dir import DataDir
from headrace.testing.faulty_files import FaultyFiles

DATA = Path("/disk/data")
OUTCOMES = 60
BATCH = build_batch([b"value"], 1_700_000_000_000)


def test_the_data_directory_itself_outlasts_a_power_loss_after_the_first_start() -> None:
    files = FaultyFiles(seed=1)
    first = DataDir(files, DATA)
    for _ in range(OUTCOMES):
        survivor = files.crash()
        assert survivor.exists(DATA / "headrace.json")
        assert DataDir(survivor, DATA).identity.cluster_id == first.identity.cluster_id


def test_a_topic_whose_creation_was_killed_anywhere_keeps_what_the_next_process_acknowledges() -> None:
    objections: list[str] = []
    for operation in range(30, 50):
        machine = Machine(operation, objections.append)
        machine.life(partial(create_and_produce, machine), end_at=operation)
        machine.end("kill")
        machine.life(partial(create_and_produce, machine))
        last = machine.files
        for _ in range(4):
            machine.files = last.crash()
            machine.life(partial(expect_one_batch, machine, objections))
        assert objections == [], f"killed at operation {operation}"


async def create_and_produce(machine: Machine) -> None:
    door = Door(machine.files, machine.clock)
    await door.start()
    if "topic" not in await door.topics():
        await door.create_topic("topic", 2, {})
    assert (await door.produce("topic", 1, BATCH))[0] == 0


async def expect_one_batch(machine: Machine, objections: list[str]) -> None:
    door = Door(machine.files, machine.clock)
    await door.start()
    if "topic" not in await door.topics():
        objections.append("the topic is gone")
    elif (await door.range("topic", 1))[1] < 1:
        objections.append("the acknowledged batch is gone")
