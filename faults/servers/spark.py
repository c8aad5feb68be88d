"""One small local Spark, shared by all tests of a process. The first user starts it, the last one stops it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.flow.spark import session
from headrace.settings import Settings, SparkSettings
from headrace.testing.local import INTERPRETED, local_settings
from tools.jars import spark_jars
from tools.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["INTERPRETED", "compiled", "session_conf", "start_spark", "stop_spark"]

_SLOTS = 2
"""Slots for real-time flows, each of which occupies one slot per input partition."""
_lock = threading.Lock()
_users = 0
_running: SparkSession | None = None


def start_spark(directory: Path) -> SparkSession:
    """Start Spark with two cores and a small heap. Short runs are faster without the second JIT compiler."""
    global _users, _running
    with _lock:
        if _running is None:
            _running = _start(directory)
        _users += 1
        return _running


@contextlib.contextmanager
def session_conf(spark: SparkSession, values: Mapping[str, str | None]) -> Iterator[None]:
    """Set these values, and restore the previous values at the end. None means Spark's own default.

    Unsetting a value at the end would not restore it: Spark would use its own default, such as 200 shuffle partitions,
    in every later test.
    """
    before = {name: spark.conf.get(name, None) for name in values}
    _set(spark, values)
    try:
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def compiled(spark: SparkSession) -> AbstractContextManager[None]:
    """Compile the plans that start while the block runs, as for users. Tests that depend on how Spark computes a value
    use it: without it, Spark interprets plans. Separate processes always compile.
    """
    return session_conf(spark, dict.fromkeys(INTERPRETED))


def _start(directory: Path) -> SparkSession:
    os.environ["JAVA_HOME"] = str(java_home())
    spark = SparkSettings(
        jars=spark_jars()[0].parent,
        conf={"spark.sql.streaming.realTimeMode.minBatchDuration": "1000"},
    )
    settings = local_settings(directory, Settings(spark=spark))
    return session.start(settings, "tests", slots=_SLOTS)


def stop_spark(running: SparkSession) -> None:
    global _users, _running
    with _lock:
        _users -= 1
        if not _users:
            _running = None
            session.stop(running)
