"""Runs faults in another process, so that a client library that aborts its process does not end the test.

librdkafka aborts its process if an internal assertion fails. This can happen if a broker is killed often or lacks a
protection. Such a run has failed, because its ledger is lost. The next run gets a new process.
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

from faults.outcome import Outcome
from faults.servers.fork_server import die_with_parent

__all__ = ["RunDied", "run_in_process"]

_EXIT_S_MAX = 10.0


class RunDied(AssertionError):
    """The process of a run died before the run ended."""


class RunFailed(AssertionError):
    """The run raised an unexpected exception; the message has the traceback."""


class _Runner:
    """A process that executes one run after another, so that imports and the fork server start only once."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_pipe,), daemon=True)
        self._process.start()
        child_pipe.close()

    def run(self, module: str, seed: int, options: dict[str, Any]) -> Outcome:
        try:
            self._pipe.send((module, seed, options))
            result = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(_EXIT_S_MAX)
            raise RunDied(
                f"{module} seed {seed}: its process exited with {self._process.exitcode}"
            ) from error
        if isinstance(result, Outcome):
            return result
        raise RunFailed(f"{module} seed {seed} raised an exception:\n{result}")

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


_runners: list[_Runner] = []


def run_in_process(module: ModuleType, seed: int, **options: Any) -> Outcome:
    """Call ``module.run(seed, **options)`` in the other process. If the run is interrupted, the next run gets a new
    process.
    """
    if not _runners:
        _runners.append(_Runner())
    try:
        return _runners[0].run(module.__name__, seed, options)
    except RunFailed:
        raise
    except BaseException:
        _runners.pop().kill()
        raise


def _serve(pipe: Pipe) -> None:
    die_with_parent()
    faulthandler.enable()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            module, seed, options = pipe.recv()
            try:
                pipe.send(importlib.import_module(module).run(seed, **options))
            except Exception:
                pipe.send(traceback.format_exc())
