"""A simulated computer: one disk, one clock, and processes that are ended at an operation of the seed's choice."""

from __future__ import annotations

import logging
import random
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from bench.faults.sim_loop import live
from headrace.testing.faults import CHANGES, Crash, Operation, Stage
from headrace.testing.faulty_clock import DrivenClock
from headrace.testing.faulty_files import FaultyFiles

__all__ = ["End", "Machine"]

End = Literal["power loss", "kill"]

_STAGES: tuple[Stage, ...] = ("before", "during", "after")


class Machine:
    """``meanwhile`` is called while a segment is being synced, which is a thread's work: it does what the event loop of
    a real process may do at that time.
    """

    def __init__(
        self,
        seed: int,
        object_to: Callable[[str], None],
        *,
        syncs_are_ignored: bool = False,
        cold_read_share: float = 0.1,
    ) -> None:
        self.rng = random.Random(f"machine {seed}")
        self.clock = DrivenClock()
        self.files = FaultyFiles(seed, syncs_are_ignored=syncs_are_ignored, cold_read_share=cold_read_share)
        self.meanwhile: Callable[[], None] | None = None
        self.on_change: Callable[[Operation], None] | None = None
        """Called before every operation that changes something; may set up a fault for it, or raise ``Crash``."""
        self.changes = 0
        """Operations that changed something, over all lives."""
        self.trace = 0
        """A sum over these operations: the same for the same seed."""
        self.said: list[str] = []
        """Warnings and errors that the processes logged."""
        self._object_to = object_to

    def life(
        self,
        main: Callable[[], Coroutine[Any, Any, None]],
        *,
        end_at: int | None = None,
        at_most_s: float = 3600.0,
    ) -> bool:
        """Run a process; ``end_at`` ends it around that many changes of its files. ``True`` if it ended by itself."""
        stage = self.rng.choice(_STAGES)
        files = self.files

        async def watched(end: Callable[[], None]) -> None:
            count = 0
            is_over = False

            def watch(operation: Operation, reached: Stage) -> None:
                nonlocal count
                if is_over:
                    raise Crash("the process is over; what its tasks still do reaches nothing")
                if operation.kind not in CHANGES:
                    return
                count += reached == "before"
                if reached == "before":
                    self.changes += 1
                    step = f"{operation.kind} {operation.path} {operation.offset} {operation.size}"
                    self.trace = zlib.crc32(step.encode(), self.trace)
                    if self.on_change is not None:
                        self._strike(operation, end)
                wanted = stage if stage != "during" or operation.kind == "sync" else "after"
                if count == end_at and reached == wanted:
                    end()
                    raise Crash(f"ended {reached} {operation.kind} of {operation.path}")
                if reached == "during" and operation.path.suffix == ".log" and self.meanwhile is not None:
                    self.meanwhile()

            files.watch = watch
            try:
                await main()
            finally:
                is_over = True

        with _listening(self.said):
            by_itself = live(self.clock, self.rng, watched, self._object_to, at_most_s=at_most_s)
        files.watch = None
        self.meanwhile = None
        return by_itself

    def _strike(self, operation: Operation, end: Callable[[], None]) -> None:
        assert self.on_change is not None
        try:
            self.on_change(operation)
        except Crash:
            end()
            raise

    def end(self, how: End) -> None:
        """What the next process finds."""
        self.files = self.files.crash() if how == "power loss" else self.files.restart()


class _Ear(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


@contextmanager
def _listening(said: list[str]) -> Iterator[None]:
    logger = logging.getLogger("headrace")
    ear, before = _Ear(said), logger.propagate
    logger.addHandler(ear)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.propagate = before
