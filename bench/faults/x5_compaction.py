"""X5, damaged files, of a compacted partition: bits flipped, blocks zeroed, files cut, one at a time.

    a compacted segment     what is damaged is answered with error 2 or not at all, never with other records; all other
                            records are there; compaction leaves the partition as it is
    its index               made again, nothing lost
    ``compacted``           readers that were away are told to start anew; nothing lost

The damage hits data that offsets are missing from, where a batch that is gone looks like one that was compacted away.
"""

from __future__ import annotations

import random
from pathlib import Path

from bench.faults.outcome import Outcome
from bench.faults.sim_book import Objections
from bench.faults.sim_compaction import CompactionScene
from bench.faults.sim_door import DATA, Door
from bench.faults.sim_machine import Machine
from bench.faults.sim_unprotected import without_protection
from bench.faults.table import Found, parse_keyed

__all__ = ["UNPROTECTED", "run"]

FAULT = "X5"
UNPROTECTED = {"check-on-read": r"damaged bytes were given to a reader"}


def run(seed: int, *, protected: bool = True, without: str = "check-on-read", cases: int = 6) -> Outcome:
    rng = random.Random(f"{FAULT} compaction {seed}")
    outcome = Outcome(FAULT, seed)
    objections = Objections()
    with without_protection(None if protected else without):
        for case in range(cases):
            if not objections.problems:
                _case(seed * 1000 + case, rng, objections, outcome)
    objections.tell(outcome)
    return outcome


def _case(seed: int, rng: random.Random, objections: Objections, outcome: Outcome) -> None:
    machine = Machine(seed, objections.object)
    scene = CompactionScene(seed, machine, objections)
    machine.life(lambda: scene.live(steps=40))
    machine.end("kill")
    files = machine.files
    kind = rng.choice((".log", ".log", ".log", ".index", "compacted"))
    found = [path for path in _paths(machine) if path.name.endswith(kind)]
    if not found:
        return
    path = rng.choice(found)
    before = files.content(path)
    size = len(before)
    if not size:
        return
    position = rng.randrange(size)
    way = rng.choice(("flip", "flip", "zero", "cut") if kind != ".log" else ("flip", "flip", "zero"))
    if way == "flip":
        files.damage(path, position, bytes([files.content(path)[position] ^ 1 << rng.randrange(8)]))
    elif way == "zero":
        files.damage(path, position, bytes(min(512, size - position)))
    else:
        files.cut(path, position)
    outcome.hits += files.content(path) != before

    async def look() -> None:
        door = Door(machine.files, machine.clock, compaction_check_s=0.05)
        scene.door = door
        await door.start()
        await door.broker.compactor.compact()
        for name in sorted(scene.made):
            await _judge(scene, door, name, damaged=kind == ".log")
        await door.stop()

    machine.life(look)


def _paths(machine: Machine) -> list[Path]:
    files = machine.files
    return [
        DATA / "topics" / topic / index / name
        for topic in files.list(DATA / "topics")
        for index in files.list(DATA / "topics" / topic)
        for name in files.list(DATA / "topics" / topic / index)
    ]


async def _judge(scene: CompactionScene, door: Door, name: str, *, damaged: bool) -> None:
    """What can be read is what was sent, and only a damaged batch may be missing, with an error in its place."""
    table = scene.tables[name]
    start, end = await door.range(name, 0)
    found: list[Found] = []
    bad: set[int] = set()
    offset = max(start, 0)
    while offset < end:
        error, data = await door.fetch_bytes(name, 0, offset, scene.rng.choice((0, 300, 4000)))
        if error or not data:
            bad.add(offset)
            if not damaged or error != 2:
                scene.objections.object(f"{name} at {offset} is answered with error {error}")
                return
            offset += 1
            continue
        try:
            batches = list(parse_keyed(data))
        except ValueError as damage:
            scene.objections.object(f"{name} at {offset}: damaged bytes were given to a reader: {damage}")
            return
        for behind, records in batches:
            found += [one for one in records if one.offset >= offset]
            offset = behind
    if not bad:
        told = await door.config(name, "headrace.tombstones.removed.below")
        table.judge(found, end, int((told or "").partition(":")[2] or 0))
        return
    for one in found:
        sent = table.sent.get(one.number)
        if sent is None or (sent.key, sent.value) != (one.key, one.value):
            scene.objections.object(f"{name}: offset {one.offset} is given with what nobody sent: {one}")
        if table.known.get(one.offset, one.number) != one.number:
            scene.objections.object(f"{name}: offset {one.offset} is given with another record")
    present = {one.offset for one in found}
    newest = {table.sent[number].key: offset for offset, number in sorted(table.known.items())}
    for key, offset in newest.items():
        is_deletion = table.sent[table.known[offset]].value is None
        if offset not in present and offset not in bad and not is_deletion:
            scene.objections.lost += 1
            scene.objections.object(f"{name}: {key!r} at {offset} is not damaged, and cannot be read")
