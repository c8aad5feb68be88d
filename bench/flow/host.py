"""Where a measured driver runs: in its own process or, for a quick run, in this process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from bench.flow.driver import Task
from headrace.flow.spark.conf import spark_conf
from headrace.runtime.part import Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Host", "ProcessHost", "RunningTask", "ThreadHost"]

_STOP_S = 120.0
_QUERY_SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.streaming.")
"""Prefixes of the settings that a query reads once, at its start."""


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A running task. ``check`` raises an error if the task has ended."""

    pid: int
    check: Callable[[], None]


class Host(Protocol):
    def run(self, task: Task) -> contextlib.AbstractContextManager[RunningTask]: ...


class ProcessHost:
    """Runs each task in a process with its own JVM."""

    @contextlib.contextmanager
    def run(self, task: Task) -> Iterator[RunningTask]:
        task.data.mkdir(parents=True)
        output = task.data / "driver.out"
        with open(output, "wb") as out:
            process = subprocess.Popen(
                task.command(), stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
            )

        def check() -> None:
            if process.poll() is not None:
                raise SystemExit(
                    f"{task.who} exited with {process.returncode}:\n{output.read_text()[-4000:]}"
                )

        assert process.stdin is not None
        try:
            yield RunningTask(process.pid, check)
            process.stdin.close()
            if process.wait(_STOP_S):
                check()
        finally:
            process.kill()
            process.wait()


class ThreadHost:
    """Runs each task in a thread. All tasks share a session, which the first task starts."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start

    @cached_property
    def _spark(self) -> SparkSession:
        return self._start()

    @contextlib.contextmanager
    def run(self, task: Task) -> Iterator[RunningTask]:
        task.data.mkdir(parents=True)
        stopping = threading.Event()
        part = Part(task.who, lambda stop: self._run(task, stop), stopping)

        def check() -> None:
            if part.error is not None:
                raise part.error

        part.start()
        try:
            yield RunningTask(os.getpid(), check)
        finally:
            stopping.set()
            part.join(_STOP_S)
        check()

    def _run(self, task: Task, stopping: threading.Event) -> None:
        task_conf = spark_conf(task.settings, "bench", (), task.data)
        conf = self._spark.conf
        previous = {name: conf.get(name, None) for name in task_conf if name.startswith(_QUERY_SETTINGS)}
        try:
            for name in previous:
                conf.set(name, task_conf[name])
            task.run(self._spark, stopping)
        finally:
            for name, value in previous.items():
                if value is None:
                    conf.unset(name)
                else:
                    conf.set(name, value)
