"""Every operation fails once: the first, the second, and so on, through one fixed story that does everything.

The story: a first start, topics, appends and rolls, commits, retention, deleted records, a deleted topic, snapshots of
both journals and a clean stop; then a start, more of it, and a kill; then a recovery, and a clean stop. In it one
operation fails, with

    EIO, ENOSPC    it has no effect, and says so
    short          a write takes only a part
    forget         a sync fails, and what it should have kept is never brought to the disk
    crash          the process ends before it, or behind it, and the power goes

After an error the story goes on: clients may be told of storage errors, a start may be refused, a stop may fail.
Nothing may hang or die for it, and the next start must find all that was acknowledged, and go on.

A seed stands for every ``_STRIDE``th operation, so ``_STRIDE`` seeds are all of them.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import partial

from bench.faults.outcome import Outcome
from bench.faults.sim_book import Objections
from bench.faults.sim_door import Door
from bench.faults.sim_judge import judge
from bench.faults.sim_machine import Machine
from bench.faults.sim_scene import Scene
from bench.faults.sim_unprotected import without_protection
from headrace.errors import DataDirError
from headrace.testing.faults import Crash, Operation

__all__ = ["STRIDE", "UNPROTECTED", "count", "run"]

FAULT = "operations"
UNPROTECTED = {"sync-before-ack": r"^\d+ lost$"}
STRIDE = 50
_KINDS = ("EIO", "ENOSPC", "short", "forget", "crash before", "crash after")
_STORAGE, _NOT_COORDINATOR = 56, 16
_SEED = 32


class _Story:
    """Told once, with operation ``number`` failing in the given way; 0 is none."""

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind
        self.objections = Objections()
        self.machine = Machine(_SEED, self.objections.object, cold_read_share=0.0)
        self.machine.on_change = self._before
        self.scene = Scene(_SEED, self.machine, self.objections, allows=self._allows)
        self.scene.snapshot_after_bytes = 700
        self.struck: Operation | None = None
        self.crashed = False
        self.struck_in = -1
        self.lives = 0
        self.told = 0
        """Operations of the story, without the life that looks at what is left."""

    def whole(self) -> None:
        for part in (self._first, self._second, self._third):
            self._tell(part)
        self.told = self.machine.changes
        self.machine.end("power loss")
        self.struck_in = -1
        self._live(self._last)

    def _tell(self, part: Callable[[Door], Awaitable[None]]) -> None:
        """One life; told again if the fault kept it from its end."""
        before = self.struck
        self._live(part)
        self.machine.end("power loss" if self.crashed else "kill")
        self.crashed = False
        if self.struck is not before and not self.objections.problems:
            self._live(part)
            self.machine.end("kill")

    def _live(self, part: Callable[[Door], Awaitable[None]]) -> None:
        self.lives += 1
        self.machine.life(partial(self._run, part))

    async def _run(self, part: Callable[[Door], Awaitable[None]]) -> None:
        try:
            door = self.scene.open_door()
            await door.start()
        except DataDirError as refusal:
            if self.struck_in != self.lives:
                self.objections.object(f"a start was refused, though nothing failed: {refusal}")
            return
        offline = {
            (topic.id, index)
            for name, index in door.broker.partitions.offline
            if (topic := door.broker.catalog.topic(name)) is not None
        }
        await judge(self.scene, door, but_not=offline if self.struck_in == self.lives else ())
        await part(door)
        for dead in door.dead_tasks():
            self.objections.object(f"a background task has ended: {dead}")

    # The fault

    def _before(self, operation: Operation) -> None:
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
        self.struck = operation
        self.struck_in = self.lives
        if self.kind == "crash before":
            raise Crash(f"ended before {kind} of {path}")

    def _allows(self, kind: str, topic: str, partition: int, error: int) -> bool:
        return self.struck_in == self.lives and error in (_STORAGE, _NOT_COORDINATOR)

    # The story

    async def _first(self, door: Door) -> None:
        scene = self.scene
        for name in ("kept", "trimmed"):
            if scene.topics[name].values == [None]:
                await scene.create(door, name)
        await self._write(door, 2)
        await scene.repeat_commits(door, 5)
        await door.broker.trim()
        await scene.change(door, "configure", "kept")
        await scene.change(door, "delete_records", "kept")
        await scene.change(door, "grow", "kept")
        await self._expect_writes(door)
        await self._stop(door)

    async def _second(self, door: Door) -> None:
        await self._write(door, 1)
        await door.broker.trim()
        await self._expect_writes(door)
        await self.scene.change(door, "delete", "trimmed")
        # Killed with batches under way.
        for target in self.scene.all_targets():
            self.scene.plain.write_now(door, target)

    async def _third(self, door: Door) -> None:
        await self._write(door, 1)
        await self._expect_writes(door)
        await self._stop(door)

    async def _last(self, door: Door) -> None:
        """Nothing fails any more: everything must work."""
        await self._write(door, 1)
        await self.scene.repeat_commits(door, 1)
        await self._stop(door)

    async def _write(self, door: Door, times: int) -> None:
        for _ in range(times):
            for target in self.scene.all_targets():
                for writer in (self.scene.plain, self.scene.idempotent[0]):
                    await writer.write(door, target)

    async def _expect_writes(self, door: Door) -> None:
        """A full disk heals: once there is space, everything is taken again."""
        if self.struck is None or self.struck_in != self.lives or self.kind not in ("ENOSPC", "short"):
            return
        if self.struck.kind not in ("write", "create") or "/topics/" not in str(self.struck.path):
            return
        refused = self.scene.refused
        for target in self.scene.all_targets():
            if (target.topic, target.partition) not in door.broker.partitions.offline:
                await self.scene.plain.write(door, target)
        if self.scene.refused != refused:
            self.objections.object("there is space again, and a write was refused")

    async def _stop(self, door: Door) -> None:
        try:
            await door.stop()
        except OSError as error:
            if self.struck_in != self.lives:
                self.objections.object(f"a clean stop failed, though nothing had: {error}")


def count() -> int:
    """How many operations the story has."""
    story = _Story(0, "none")
    story.whole()
    assert not story.objections.problems, story.objections.problems
    return story.told


def run(seed: int, *, protected: bool = True, without: str = "sync-before-ack") -> Outcome:
    outcome = Outcome(FAULT, seed, cases=0)
    objections = Objections()
    with without_protection(None if protected else without):
        for number in range(seed, count() + 1, STRIDE):
            for kind in _KINDS if protected else _KINDS[-2:]:
                story = _Story(number, kind)
                story.whole()
                outcome.cases += story.struck is not None
                outcome.hits += story.struck is not None
                objections.lost += story.objections.lost
                objections.duplicated += story.objections.duplicated
                objections.problems += [
                    f"operation {number} ({story.struck and story.struck.kind} of "
                    f"{story.struck and story.struck.path}), {kind}: {problem}"
                    for problem in story.objections.problems
                ]
    objections.tell(outcome)
    return outcome
