"""One Spark for all tests of a process that need one: local and small. The first starts it, the last one stops it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.flow import session
from headrace.settings import Settings, SparkSettings
from tools.jars import spark_jars
from tools.java import QUICK_START, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["INTERPRETED", "compiled", "start_spark", "stop_spark"]

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""A plan that sees a handful of rows takes longer to compile than to run, and Spark itself leaves one uncompiled that
is too large. What depends on how Spark computes a value has the compiled one (``compiled``), and so has every process
of its own."""

_SLOTS = 2
"""For flows in real time: each holds one for each partition that it reads."""
_lock = threading.Lock()
_users = 0
_running: SparkSession | None = None


def start_spark(directory: Path) -> SparkSession:
    """Two cores and a small heap; short runs are quicker without the second compiler."""
    global _users, _running
    with _lock:
        if _running is None:
            _running = _start(directory)
        _users += 1
        return _running


@contextlib.contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """Plans that begin meanwhile are compiled, as they are for users."""
    for name in INTERPRETED:
        spark.conf.unset(name)
    try:
        yield
    finally:
        for name, value in INTERPRETED.items():
            spark.conf.set(name, value)


def _start(directory: Path) -> SparkSession:
    os.environ["JAVA_HOME"] = str(java_home())
    spark = SparkSettings(
        master="local[2]",
        driver_memory="768m",
        java_options=" ".join(QUICK_START),
        jars=spark_jars()[0].parent,
        conf={
            **INTERPRETED,
            "spark.sql.streaming.pollingDelay": "50ms",
            "spark.sql.streaming.realTimeMode.minBatchDuration": "1000",
        },
    )
    return session.start(Settings(data=directory, spark=spark), "tests", slots=_SLOTS)


def stop_spark(running: SparkSession) -> None:
    global _users, _running
    with _lock:
        _users -= 1
        if not _users:
            _running = None
            session.stop(running)
