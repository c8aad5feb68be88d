"""One Spark for all tests of a process that need one: local and small. The first starts it, the last one stops it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.flow import session
from headrace.settings import Settings, SparkSettings
from tools.jars import spark_jars
from tools.java import QUICK_START, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["start_spark", "stop_spark"]

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


def _start(directory: Path) -> SparkSession:
    os.environ["JAVA_HOME"] = str(java_home())
    spark = SparkSettings(
        master="local[2]",
        driver_memory="768m",
        java_options=" ".join(QUICK_START),
        jars=spark_jars()[0].parent,
    )
    return session.start(Settings(data=directory, spark=spark), "tests")


def stop_spark(running: SparkSession) -> None:
    global _users, _running
    with _lock:
        _users -= 1
        if not _users:
            _running = None
            session.stop(running)
