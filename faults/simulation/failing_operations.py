"""Every file operation fails once: the first, the second, and so on, in one fixed script that uses every feature.

The script: a first start, topics, appends and rolls, commits, retention, deleted records, a deleted topic, snapshots of
both journals and a clean stop; then a start, more of the same, and a kill; then a recovery and a clean stop. One of its
operations fails in one of these ways:

    EIO, ENOSPC    the operation has no effect, and returns this error
    short          a write writes only a part of its bytes
    forget         a sync fails, and its data never reaches the disk
    crash          the process ends before or after the operation, and the power fails

After an error the script continues: clients may get storage errors, a start may be refused, a stop may fail. No task
may hang or end. The next start must find everything that was acknowledged, and must work.

A seed covers every ``STRIDE``-th operation, so ``STRIDE`` seeds cover all of them.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from functools import partial

from faults.disk.fault import Crash, Operation
from faults.outcome import Outcome
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from faults.simulation.requests import SimulatedBroker
from faults.simulation.scene import Scene
from faults.simulation.start_oracle import judge
from faults.simulation.unprotected import without_protection
from headrace.errors import DataDirError

__all__ = ["STRIDE", "UNPROTECTED", "count", "run"]

FAULT = "operations"
UNPROTECTED = {"sync-before-ack": r"^\d+ lost$"}
STRIDE = 50
_KINDS = ("EIO", "ENOSPC", "short", "forget", "crash before", "crash after")
_STORAGE, _NOT_COORDINATOR = 56, 16
_SEED = 32


class _Script:
    """One run of the script: ``number`` is the operation that fails (0: none), ``kind`` is how it fails."""

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind
        self.findings = Findings()
        self.machine = Machine(_SEED, self.findings.report_problem, cold_read_share=0.0)
        self.machine.on_change = self._inject_fault
        self.scene = Scene(_SEED, self.machine, self.findings, allows=self._allows)
        self.scene.snapshot_after_bytes = 700
        self.failed_operation: Operation | None = None
        self.crashed = False
        self.failed_in_process = -1
        self.process_count = 0
        self.changes = 0
        """The number of operations in the script, without the last start."""

    def run_all(self) -> None:
        for part in (self._first, self._second, self._third):
            self._run_part_until_done(part)
        self.changes = self.machine.changes
        self.machine.end("power loss")
        self.failed_in_process = -1
        self._run_part(self._last)

    def _run_part_until_done(self, part: Callable[[SimulatedBroker], Awaitable[None]]) -> None:
        """Run a part of the script, and repeat it if the fault interrupted it."""
        failed_before = self.failed_operation
        self._run_part(part)
        self.machine.end("power loss" if self.crashed else "kill")
        self.crashed = False
        if self.failed_operation is not failed_before and not self.findings.problems:
            self._run_part(part)
            self.machine.end("kill")

    def _run_part(self, part: Callable[[SimulatedBroker], Awaitable[None]]) -> None:
        self.process_count += 1
        self.machine.run_process(partial(self._run_broker, part))

    async def _run_broker(self, part: Callable[[SimulatedBroker], Awaitable[None]]) -> None:
        try:
            broker = self.scene.create_broker()
            await broker.start()
        except DataDirError as refusal:
            if self.failed_in_process != self.process_count:
                self.findings.report_problem(f"a start was refused, although no operation failed: {refusal}")
            return
        offline = {
            (topic.id, index)
            for name, index in broker.inner.partitions.offline
            if (topic := broker.inner.catalog.topic(name)) is not None
        }
        await judge(
            self.scene,
            broker,
            checked_elsewhere=offline if self.failed_in_process == self.process_count else (),
        )
        await part(broker)
        for dead in broker.dead_tasks():
            self.findings.report_problem(f"a background task has ended: {dead}")

    # The fault

    def _inject_fault(self, operation: Operation) -> None:
        if self.machine.changes != self.number:
            return
        files, path, kind = self.machine.files, str(operation.path), operation.kind
        if self.kind in ("EIO", "ENOSPC"):
            files.fail(kind, path=path, error=getattr(errno, self.kind))
        elif self.kind == "short" and kind == "write":
            files.short_write(path=path)
        elif self.kind == "forget" and kind == "sync":
            files.forget_sync(path=path)
        elif self.kind == "crash before":
            self.crashed = True
        elif self.kind == "crash after":
            files.crash_at(1, when="after", kind=kind, path=path)
            self.crashed = True
        else:
            return
        self.failed_operation = operation
        self.failed_in_process = self.process_count
        if self.kind == "crash before":
            raise Crash(f"ended before {kind} of {path}")

    def _allows(self, kind: str, topic: str, partition: int, error: int) -> bool:
        return self.failed_in_process == self.process_count and error in (_STORAGE, _NOT_COORDINATOR)

    # The script

    async def _first(self, broker: SimulatedBroker) -> None:
        scene = self.scene
        for name in ("kept", "trimmed"):
            if scene.topics[name].values == [None]:
                await scene.create(broker, name)
        await self._write(broker, 2)
        await scene.repeat_commits(broker, 5)
        await broker.inner.trim()
        await scene.change(broker, "configure", "kept")
        await scene.change(broker, "delete_records", "kept")
        await scene.change(broker, "grow", "kept")
        await self._expect_writes(broker)
        await self._stop(broker)

    async def _second(self, broker: SimulatedBroker) -> None:
        await self._write(broker, 1)
        await broker.inner.trim()
        await self._expect_writes(broker)
        await self.scene.change(broker, "delete", "trimmed")
        # The process is killed while these batches are in flight.
        for target in self.scene.all_targets():
            self.scene.plain.write_now(broker, target)

    async def _third(self, broker: SimulatedBroker) -> None:
        await self._write(broker, 1)
        await self._expect_writes(broker)
        await self._stop(broker)

    async def _last(self, broker: SimulatedBroker) -> None:
        """No operation fails any more, so all requests must work."""
        await self._write(broker, 1)
        await self.scene.repeat_commits(broker, 1)
        await self._stop(broker)

    async def _write(self, broker: SimulatedBroker, times: int) -> None:
        for _ in range(times):
            for target in self.scene.all_targets():
                for writer in (self.scene.plain, self.scene.idempotent[0]):
                    await writer.write(broker, target)

    async def _expect_writes(self, broker: SimulatedBroker) -> None:
        """After a full disk has space again, the broker must accept every write."""
        if (
            self.failed_operation is None
            or self.failed_in_process != self.process_count
            or self.kind not in ("ENOSPC", "short")
        ):
            return
        if self.failed_operation.kind not in ("write", "create") or "/topics/" not in str(
            self.failed_operation.path
        ):
            return
        refused = self.scene.refused
        for target in self.scene.all_targets():
            if (target.topic, target.partition) not in broker.inner.partitions.offline:
                await self.scene.plain.write(broker, target)
        if self.scene.refused != refused:
            self.findings.report_problem("a write was refused, although the disk has space again")

    async def _stop(self, broker: SimulatedBroker) -> None:
        try:
            await broker.stop()
        except OSError as error:
            if self.failed_in_process != self.process_count:
                self.findings.report_problem(
                    f"a clean stop failed, although no operation had failed: {error}"
                )


def count() -> int:
    """Return the number of operations in the script."""
    script = _Script(0, "none")
    script.run_all()
    assert not script.findings.problems, script.findings.problems
    return script.changes


def run(
    seed: int, *, protected: bool = True, without: str = "sync-before-ack", cases: int | None = None
) -> Outcome:
    """``cases``: draw this many operations and ways to fail at random, instead of all that the seed covers."""
    outcome = Outcome(FAULT, seed, cases=0)
    findings = Findings()
    kinds = _KINDS if protected else _KINDS[-2:]
    with without_protection(None if protected else without):
        chosen_cases = [(number, kind) for number in range(seed, count() + 1, STRIDE) for kind in kinds]
        if cases is not None:
            rng, last = random.Random(seed), count()
            chosen_cases = [(rng.randint(1, last), rng.choice(kinds)) for _ in range(cases)]
        for number, kind in chosen_cases:
            script = _Script(number, kind)
            script.run_all()
            outcome.cases += script.failed_operation is not None
            outcome.hits += script.failed_operation is not None
            findings.lost += script.findings.lost
            findings.duplicated += script.findings.duplicated
            findings.problems += [
                f"operation {number} ({script.failed_operation and script.failed_operation.kind} of "
                f"{script.failed_operation and script.failed_operation.path}), {kind}: {problem}"
                for problem in script.findings.problems
            ]
    findings.report_to(outcome)
    return outcome
