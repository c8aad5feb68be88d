"""Fault X5, damaged files of a compacted partition: a bit flipped, a block zeroed or a file truncated, one file at a
time.

    a compacted segment     a damaged batch gets error 2 or no records, never other records; all other records exist;
                            compaction leaves the partition unchanged
    its index               is rebuilt, nothing is lost
    ``compacted``           readers that were disconnected must start over; nothing is lost

The damage hits data with missing offsets, where a lost batch resembles a batch that compaction removed.
"""

from __future__ import annotations

import random
from pathlib import Path

from faults.log.compacted_oracle import StoredRecord, parse_keyed
from faults.outcome import Outcome
from faults.simulation.compaction import CompactionScene
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from faults.simulation.requests import DATA, SimulatedBroker
from faults.simulation.unprotected import without_protection

__all__ = ["UNPROTECTED", "run"]

FAULT = "X5"
UNPROTECTED = {"check-on-read": r"damaged bytes were delivered to a reader"}


def run(seed: int, *, protected: bool = True, without: str = "check-on-read", cases: int = 6) -> Outcome:
    rng = random.Random(f"{FAULT} compaction {seed}")
    outcome = Outcome(FAULT, seed)
    findings = Findings()
    with without_protection(None if protected else without):
        for case in range(cases):
            if not findings.problems:
                _run_case(seed * 1000 + case, rng, findings, outcome)
    findings.report_to(outcome)
    return outcome


def _run_case(seed: int, rng: random.Random, findings: Findings, outcome: Outcome) -> None:
    machine = Machine(seed, findings.report_problem)
    scene = CompactionScene(seed, machine, findings)
    machine.run_process(lambda: scene.run_broker(steps=40))
    machine.end("kill")
    files = machine.files
    kind = rng.choice((".log", ".log", ".log", ".index", "compacted"))
    paths = [path for path in _paths(machine) if path.name.endswith(kind)]
    if not paths:
        return
    path = rng.choice(paths)
    before = files.content(path)
    size = len(before)
    if not size:
        return
    position = rng.randrange(size)
    damage = rng.choice(("flip", "flip", "zero", "cut") if kind != ".log" else ("flip", "flip", "zero"))
    if damage == "flip":
        files.damage(path, position, bytes([files.content(path)[position] ^ 1 << rng.randrange(8)]))
    elif damage == "zero":
        files.damage(path, position, bytes(min(512, size - position)))
    else:
        files.cut(path, position)
    outcome.hits += files.content(path) != before

    async def check() -> None:
        broker = SimulatedBroker(machine.files, machine.clock, compaction_check_s=0.05)
        scene.broker = broker
        await broker.start()
        await broker.inner.compactor.compact()
        for name in sorted(scene.created):
            await _judge(scene, broker, name, damaged=kind == ".log")
        await broker.stop()

    machine.run_process(check)


def _paths(machine: Machine) -> list[Path]:
    files = machine.files
    return [
        DATA / "topics" / topic / index / name
        for topic in files.list(DATA / "topics")
        for index in files.list(DATA / "topics" / topic)
        for name in files.list(DATA / "topics" / topic / index)
    ]


async def _judge(scene: CompactionScene, broker: SimulatedBroker, name: str, *, damaged: bool) -> None:
    """Everything readable must have been sent. Only a damaged batch may be missing, with an error in its place."""
    table = scene.tables[name]
    start, end = await broker.range(name, 0)
    records_read: list[StoredRecord] = []
    unreadable: set[int] = set()
    offset = max(start, 0)
    while offset < end:
        error, data = await broker.fetch_bytes(name, 0, offset, scene.rng.choice((0, 300, 4000)))
        if error or not data:
            unreadable.add(offset)
            if not damaged or error != 2:
                scene.findings.report_problem(f"{name} cannot be read at {offset}: error {error}")
                return
            offset += 1
            continue
        try:
            batches = list(parse_keyed(data))
        except ValueError as damage:
            scene.findings.report_problem(
                f"{name} at {offset}: damaged bytes were delivered to a reader: {damage}"
            )
            return
        for next_offset, records in batches:
            records_read += [record for record in records if record.offset >= offset]
            offset = next_offset
    if not unreadable:
        removed_below = await broker.config(name, "headrace.tombstones.removed.below")
        table.judge(records_read, end, int((removed_below or "").partition(":")[2] or 0))
        return
    for stored in records_read:
        sent = table.sent.get(stored.number)
        if sent is None or (sent.key, sent.value) != (stored.key, stored.value):
            scene.findings.report_problem(
                f"{name}: offset {stored.offset} was delivered with a record that no client sent: {stored}"
            )
        if table.numbers.get(stored.offset, stored.number) != stored.number:
            scene.findings.report_problem(f"{name}: offset {stored.offset} was delivered with another record")
    present = {record.offset for record in records_read}
    newest = {table.sent[number].key: offset for offset, number in sorted(table.numbers.items())}
    for key, offset in newest.items():
        is_deletion = table.sent[table.numbers[offset]].value is None
        if offset not in present and offset not in unreadable and not is_deletion:
            scene.findings.lost += 1
            scene.findings.report_problem(f"{name}: {key!r} at {offset} is not damaged, but cannot be read")
