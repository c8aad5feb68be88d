"""One Spark for all tests that need it: local and small."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.flow import session
from headrace.settings import Settings, SparkSettings
from tools.jars import spark_jars
from tools.java import QUICK_START, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["start_spark", "stop_spark"]


_shared: list[SparkSession] = []
_users = 0


def start_spark(directory: Path) -> SparkSession:
    """Two cores and a small heap; short runs are quicker without the second compiler. Whoever asks again in the same
    process is given the same one.
    """
    global _users
    if not _shared:
        os.environ["JAVA_HOME"] = str(java_home())
        spark = SparkSettings(
            master="local[2]",
            driver_memory="768m",
            java_options=" ".join(QUICK_START),
            jars=spark_jars()[0].parent,
        )
        _shared.append(session.start(Settings(data=directory, spark=spark), "tests"))
    _users += 1
    return _shared[0]


def stop_spark(running: SparkSession) -> None:
    """The last one who has it stops it."""
    global _users
    _users -= 1
    if not _users:
        session.stop(_shared.pop())
