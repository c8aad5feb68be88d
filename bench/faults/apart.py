"""Runs in a process of their own, so that a client library that dies takes nothing else with it.

librdkafka ends its whole process where it finds itself in a state that it holds to be impossible, and a broker that is
killed again and again, or whose protection was taken out, is what brings it there. The ledger of such a run is gone
with it, so the run has failed, and the next one gets a new process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import traceback
from multiprocessing.connection import Connection as Pipe
from types import ModuleType
from typing import Any

from bench.faults.forking import die_with_parent
from bench.faults.outcome import Outcome

__all__ = ["RunDied", "run_apart"]

_END_S_MAX = 10.0


class RunDied(AssertionError):
    """The process of a run ended where the run had not."""


class RunFailed(AssertionError):
    """The run raised something that it did not foresee; the message has the trace."""


class _Runner:
    """A process that makes one run after another; the imports and the server that forks brokers are paid for once."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, module: str, seed: int, how: dict[str, Any]) -> Outcome:
        try:
            self._pipe.send((module, seed, how))
            answer = self._pipe.recv()
        except (EOFError, OSError) as gone:
            self._process.join(_END_S_MAX)
            raise RunDied(f"{module} seed {seed}: its process ended with {self._process.exitcode}") from gone
        if isinstance(answer, Outcome):
            return answer
        raise RunFailed(f"{module} seed {seed} did not come to its end:\n{answer}")

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


_runners: list[_Runner] = []


def run_apart(module: ModuleType, seed: int, **how: Any) -> Outcome:
    """``module.run(seed, **how)``. What was interrupted is ended, and the next run gets a new process."""
    if not _runners:
        _runners.append(_Runner())
    try:
        return _runners[0].run(module.__name__, seed, how)
    except RunFailed:
        raise
    except BaseException:
        _runners.pop().end()
        raise


def _serve(pipe: Pipe) -> None:
    die_with_parent()
    faulthandler.enable()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            module, seed, how = pipe.recv()
            try:
                pipe.send(importlib.import_module(module).run(seed, **how))
            except Exception:
                pipe.send(traceback.format_exc())
