"""Where a driver runs while it is measured: in a process of its own or, for a quick try, in this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from bench.driver import Task
from headrace.flow.spark_conf import spark_conf
from headrace.runtime.part import Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Fresh", "Here", "Host", "Hosted"]

_STOP_S = 120.0
_OF_A_QUERY = ("spark.sql.shuffle.partitions", "spark.sql.streaming.")
"""Configuration that a query takes along when it starts."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """A task that runs; ``check`` raises if it has ended."""

    pid: int
    check: Callable[[], None]


class Host(Protocol):
    def run(self, task: Task) -> contextlib.AbstractContextManager[Hosted]: ...


class Fresh:
    """A process with a JVM of its own, for each task."""

    @contextlib.contextmanager
    def run(self, task: Task) -> Iterator[Hosted]:
        task.data.mkdir(parents=True)
        said = task.data / "driver.out"
        with open(said, "wb") as out:
            process = subprocess.Popen(
                task.command(), stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
            )

        def check() -> None:
            if process.poll() is not None:
                raise SystemExit(f"{task.who} ended with {process.returncode}:\n{said.read_text()[-4000:]}")

        assert process.stdin is not None
        try:
            yield Hosted(process.pid, check)
            process.stdin.close()
            if process.wait(_STOP_S):
                check()
        finally:
            process.kill()
            process.wait()


class Here:
    """A thread, with a session that all tasks share, and that the first of them starts."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start

    @cached_property
    def _spark(self) -> SparkSession:
        return self._start()

    @contextlib.contextmanager
    def run(self, task: Task) -> Iterator[Hosted]:
        task.data.mkdir(parents=True)
        stopping = threading.Event()
        part = Part(task.who, lambda stop: self._run(task, stop), stopping)

        def check() -> None:
            if part.error is not None:
                raise part.error

        part.start()
        try:
            yield Hosted(os.getpid(), check)
        finally:
            stopping.set()
            part.join(_STOP_S)
        check()

    def _run(self, task: Task, stopping: threading.Event) -> None:
        asked = spark_conf(task.settings, "bench", (), task.data)
        conf = self._spark.conf
        before = {name: conf.get(name, None) for name in asked if name.startswith(_OF_A_QUERY)}
        try:
            for name in before:
                conf.set(name, asked[name])
            task.run(self._spark, stopping)
        finally:
            for name, value in before.items():
                if value is None:
                    conf.unset(name)
                else:
                    conf.set(name, value)
