"""A simulated broker that compacts continuously. It starts and crashes many times on one disk; tables check its log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from faults.disk.fault import Operation
from faults.log.compacted_oracle import Sent, StoredRecord, Table, build_keyed, parse_keyed
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from faults.simulation.requests import SimulatedBroker

__all__ = ["CompactionScene"]

_TOPICS = ("compacted", "both")
_KEYS = 12
_PAUSES_S = (0.0, 0.0, 0.001, 0.01, 0.3)
_REMOVED_BELOW = "headrace.tombstones.removed.below"


class CompactionScene:
    """``allows`` decides whether a produce request may get an error."""

    def __init__(
        self,
        seed: int,
        machine: Machine,
        findings: Findings,
        *,
        allows: Callable[[int], bool] = lambda error: False,
    ) -> None:
        self.rng = random.Random(f"compaction {seed}")
        self.machine = machine
        self.findings = findings
        self.allows = allows
        self.tables = {name: Table(name, findings) for name in _TOPICS}
        self.created: set[str] = set()
        self.broker: SimulatedBroker | None = None
        self.was_compacting = False
        machine.on_change = self.note
        self.compactions = 0
        self._segment_bytes = self.rng.choice((400, 900, 2500))
        self._memory_bytes = self.rng.choice((5 * 256, 1 << 20))
        self._delete_retention_ms = self.rng.choice((0, 300, 100_000))

    def note(self, operation: Operation) -> None:
        """Record whether the last operation of a process was inside a compaction."""
        partitions = self.broker.inner.partitions.all() if self.broker is not None else []
        self.was_compacting = any(p.fenced is None and p.log.compacting is not None for _, _, p in partitions)

    async def run_broker(self, *, steps: int, stop: bool = True) -> None:
        self.broker = None
        broker = SimulatedBroker(
            self.machine.files,
            self.machine.clock,
            retention_check_s=1.0,
            compaction_check_s=self.rng.choice((0.05, 0.5)),
            compaction_memory_bytes=self._memory_bytes,
        )
        self.broker = broker
        await broker.start()
        for name in sorted(self.created):
            await self.judge(broker, name)
        for name in _TOPICS:
            await self._create_topic(broker, name)
        if self.created:
            await asyncio.gather(
                self._write(broker, steps, idempotent=False),
                self._write(broker, steps, idempotent=True),
                self._compact(broker, steps),
            )
            for name in sorted(self.created):
                await self.judge(broker, name)
        for dead in broker.dead_tasks():
            self.findings.report_problem(f"a background task has ended: {dead}")
        self.compactions += broker.inner.compactor.counts.runs
        if stop:
            await broker.stop()

    async def _create_topic(self, broker: SimulatedBroker, name: str) -> None:
        if name in self.created:
            return
        cleanup_policy = "compact" if name == "compacted" else "compact,delete"
        error, _ = await broker.create_topic(
            name,
            1,
            {
                "cleanup.policy": cleanup_policy,
                "internal.segment.bytes": str(self._segment_bytes),
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(self._delete_retention_ms),
                "max.compaction.lag.ms": "500",
            },
        )
        # The topic exists even if a crash interrupted its creation.
        if error in (0, 36):
            self.created.add(name)

    async def _write(self, broker: SimulatedBroker, steps: int, *, idempotent: bool) -> None:
        producer_id, sequences = -1, dict.fromkeys(_TOPICS, 0)
        if idempotent:
            error, producer_id = await broker.new_producer()
            if error:
                return
        for _ in range(steps):
            await asyncio.sleep(self.rng.choice(_PAUSES_S))
            name = self.rng.choice(sorted(self.created))
            records = self._records(self.tables[name])
            sequence = sequences[name] if idempotent else -1
            sequences[name] += len(records)
            batch = build_keyed(
                records, self.machine.clock.now_ms(), producer_id=producer_id, sequence=sequence
            )
            error, offset = await broker.produce(name, 0, batch)
            if not error:
                self.tables[name].ack(records, offset)
            elif not self.allows(error):
                self.findings.report_problem(f"a write to {name} got error {error}")
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

    async def _compact(self, broker: SimulatedBroker, steps: int) -> None:
        for _ in range(steps // 2):
            await asyncio.sleep(self.rng.choice(_PAUSES_S))
            if self.rng.random() < 0.3:
                await broker.inner.trim()

    async def judge(self, broker: SimulatedBroker, name: str) -> None:
        """Read everything, batch by batch, as a client does."""
        start, end = await broker.range(name, 0)
        removed_below = await broker.config(name, _REMOVED_BELOW)
        if start < 0 or removed_below is None:
            self.findings.report_problem(f"{name} cannot be queried")
            return
        records_read: list[StoredRecord] = []
        offset = start
        while offset < end:
            error, data = await broker.fetch_bytes(name, 0, offset, self.rng.choice((0, 300, 4000)))
            if error or not data:
                self.findings.report_problem(f"{name} cannot be read at {offset} of {end}: error {error}")
                return
            for next_offset, records in parse_keyed(data):
                if next_offset <= offset:
                    self.findings.report_problem(
                        f"{name}: a batch ends at {next_offset}, before the requested offset {offset}"
                    )
                    return
                records_read += [record for record in records if record.offset >= offset]
                offset = next_offset
        self.tables[name].judge(records_read, end, int(removed_below.partition(":")[2] or 0))
