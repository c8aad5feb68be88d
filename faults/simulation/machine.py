"""A simulated computer: one disk, one clock, and processes that crash at an operation that the seed chooses."""

from __future__ import annotations

import logging
import random
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from faults.disk.fault import CHANGES, Crash, Operation, Stage
from faults.disk.faulty_files import FaultyFiles
from faults.simulation.loop import run_process
from headrace.testing.clock import DrivenClock

__all__ = ["End", "Machine"]

End = Literal["power loss", "kill"]

_STAGES: tuple[Stage, ...] = ("before", "during", "after")


class Machine:
    """``meanwhile`` is called during the sync of a segment, which runs in a thread. It performs actions that the event
    loop of a real process could perform at that time.
    """

    def __init__(
        self,
        seed: int,
        report_problem: Callable[[str], None],
        *,
        syncs_are_ignored: bool = False,
        cold_read_share: float = 0.1,
    ) -> None:
        self.rng = random.Random(f"machine {seed}")
        self.clock = DrivenClock()
        self.files = FaultyFiles(seed, syncs_are_ignored=syncs_are_ignored, cold_read_share=cold_read_share)
        self.meanwhile: Callable[[], None] | None = None
        self.on_change: Callable[[Operation], None] | None = None
        """Called before every operation that changes files. It can set up a fault for the operation, or raise
        ``Crash``.
        """
        self.changes = 0
        """The number of operations that changed files, over all processes."""
        self.trace = 0
        """A checksum of these operations. The same seed gives the same checksum."""
        self.log_lines: list[str] = []
        """Warnings and errors that the processes logged."""
        self._object_to = report_problem

    def run_process(
        self,
        main: Callable[[], Coroutine[Any, Any, None]],
        *,
        end_at: int | None = None,
        at_most_s: float = 3600.0,
    ) -> bool:
        """Run a process. If ``end_at`` is given, the process crashes after about this many file changes. Return whether
        it ended by itself.
        """
        stage = self.rng.choice(_STAGES)
        files = self.files

        async def main_with_hooks(end: Callable[[], None]) -> None:
            count = 0
            has_ended = False

            def on_operation(operation: Operation, reached: Stage) -> None:
                nonlocal count
                if has_ended:
                    raise Crash("the process has ended; later operations of its tasks have no effect")
                if operation.kind not in CHANGES:
                    return
                count += reached == "before"
                if reached == "before":
                    self.changes += 1
                    step = f"{operation.kind} {operation.path} {operation.offset} {operation.size}"
                    self.trace = zlib.crc32(step.encode(), self.trace)
                    if self.on_change is not None:
                        self._call_on_change(operation, end)
                crash_stage = stage if stage != "during" or operation.kind == "sync" else "after"
                if count == end_at and reached == crash_stage:
                    end()
                    raise Crash(f"crashed {reached} {operation.kind} of {operation.path}")
                if reached == "during" and operation.path.suffix == ".log" and self.meanwhile is not None:
                    self.meanwhile()

            files.watch = on_operation
            try:
                await main()
            finally:
                has_ended = True

        with _captured_log(self.log_lines):
            ended_by_itself = run_process(
                self.clock, self.rng, main_with_hooks, self._object_to, at_most_s=at_most_s
            )
        files.watch = None
        self.meanwhile = None
        return ended_by_itself

    def _call_on_change(self, operation: Operation, end: Callable[[], None]) -> None:
        assert self.on_change is not None
        try:
            self.on_change(operation)
        except Crash:
            end()
            raise

    def end(self, cause: End) -> None:
        """End the process, and leave the disk in the state that the next process finds."""
        self.files = self.files.crash() if cause == "power loss" else self.files.restart()


class _LogCapture(logging.Handler):
    def __init__(self, log_lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._log_lines = log_lines

    def emit(self, record: logging.LogRecord) -> None:
        self._log_lines.append(record.getMessage())


@contextmanager
def _captured_log(log_lines: list[str]) -> Iterator[None]:
    logger = logging.getLogger("headrace")
    handler, before = _LogCapture(log_lines), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
