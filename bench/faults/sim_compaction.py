"""A simulated broker that compacts all the time, through any number of lives on one disk, held against tables."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from bench.faults.sim_book import Objections
from bench.faults.sim_door import Door
from bench.faults.sim_machine import Machine
from bench.faults.table import Found, Sent, Table, build_keyed, parse_keyed
from headrace.testing.faults import Operation

__all__ = ["CompactionScene"]

_TOPICS = ("compacted", "both")
_KEYS = 12
_PAUSES_S = (0.0, 0.0, 0.001, 0.01, 0.3)
_REMOVED_BELOW = "headrace.tombstones.removed.below"


class CompactionScene:
    """``allows`` says whether a produce may be answered with an error."""

    def __init__(
        self,
        seed: int,
        machine: Machine,
        objections: Objections,
        *,
        allows: Callable[[int], bool] = lambda error: False,
    ) -> None:
        self.rng = random.Random(f"compaction {seed}")
        self.machine = machine
        self.objections = objections
        self.allows = allows
        self.tables = {name: Table(name, objections) for name in _TOPICS}
        self.made: set[str] = set()
        self.door: Door | None = None
        self.was_compacting = False
        machine.on_change = self.note
        self.compactions = 0
        self._segment_bytes = self.rng.choice((400, 900, 2500))
        self._memory_bytes = self.rng.choice((5 * 256, 1 << 20))
        self._delete_retention_ms = self.rng.choice((0, 300, 100_000))

    def note(self, operation: Operation) -> None:
        """Whether the last operation of a process came in the middle of a compaction."""
        partitions = self.door.broker.partitions.all() if self.door is not None else []
        self.was_compacting = any(p.fenced is None and p.log.compacting is not None for _, _, p in partitions)

    async def live(self, *, steps: int, stop: bool = True) -> None:
        self.door = None
        door = Door(
            self.machine.files,
            self.machine.clock,
            retention_check_s=1.0,
            compaction_check_s=self.rng.choice((0.05, 0.5)),
            compaction_memory_bytes=self._memory_bytes,
        )
        self.door = door
        await door.start()
        for name in sorted(self.made):
            await self.judge(door, name)
        for name in _TOPICS:
            await self._make(door, name)
        if self.made:
            await asyncio.gather(
                self._write(door, steps, idempotent=False),
                self._write(door, steps, idempotent=True),
                self._compact(door, steps),
            )
            for name in sorted(self.made):
                await self.judge(door, name)
        for dead in door.dead_tasks():
            self.objections.object(f"a background task has ended: {dead}")
        self.compactions += door.broker.compactor.counts.runs
        if stop:
            await door.stop()

    async def _make(self, door: Door, name: str) -> None:
        if name in self.made:
            return
        policy = "compact" if name == "compacted" else "compact,delete"
        error, _ = await door.create_topic(
            name,
            1,
            {
                "cleanup.policy": policy,
                "internal.segment.bytes": str(self._segment_bytes),
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(self._delete_retention_ms),
                "max.compaction.lag.ms": "500",
            },
        )
        # One that a crash came upon is there all the same.
        if error in (0, 36):
            self.made.add(name)

    async def _write(self, door: Door, steps: int, *, idempotent: bool) -> None:
        producer_id, sequences = -1, dict.fromkeys(_TOPICS, 0)
        if idempotent:
            error, producer_id = await door.new_producer()
            if error:
                return
        for _ in range(steps):
            await asyncio.sleep(self.rng.choice(_PAUSES_S))
            name = self.rng.choice(sorted(self.made))
            records = self._records(self.tables[name])
            sequence = sequences[name] if idempotent else -1
            sequences[name] += len(records)
            batch = build_keyed(
                records, self.machine.clock.now_ms(), producer_id=producer_id, sequence=sequence
            )
            error, offset = await door.produce(name, 0, batch)
            if not error:
                self.tables[name].ack(records, offset)
            elif not self.allows(error):
                self.objections.object(f"a record for {name} was answered with error {error}")
            elif idempotent:
                return

    def _records(self, table: Table) -> list[Sent]:
        records = []
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            number = self.rng.randrange(_KEYS)
            key = b"k%d" % number if number % 2 else b"a-key-longer-than-a-hash-%d" % number
            value = None if self.rng.random() < 0.2 else self.rng.randbytes(self.rng.randrange(60))
            records.append(table.send(key, value))
        return records

    async def _compact(self, door: Door, steps: int) -> None:
        for _ in range(steps // 2):
            await asyncio.sleep(self.rng.choice(_PAUSES_S))
            if self.rng.random() < 0.3:
                await door.broker.trim()

    async def judge(self, door: Door, name: str) -> None:
        """Read it all, as a client that goes from batch to batch."""
        start, end = await door.range(name, 0)
        told = await door.config(name, _REMOVED_BELOW)
        if start < 0 or told is None:
            self.objections.object(f"{name} cannot be looked at")
            return
        found: list[Found] = []
        offset = start
        while offset < end:
            error, data = await door.fetch_bytes(name, 0, offset, self.rng.choice((0, 300, 4000)))
            if error or not data:
                self.objections.object(f"{name} cannot be read at {offset} of {end}: error {error}")
                return
            for behind, records in parse_keyed(data):
                if behind <= offset:
                    self.objections.object(f"{name}: a batch ends at {behind}, and {offset} was asked for")
                    return
                found += [one for one in records if one.offset >= offset]
                offset = behind
        self.tables[name].judge(found, end, int(told.partition(":")[2] or 0))
