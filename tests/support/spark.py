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


def start_spark(directory: Path) -> SparkSession:
    """Two cores and a small heap; short runs are quicker without the second compiler."""
    os.environ["JAVA_HOME"] = str(java_home())
    spark = SparkSettings(
        master="local[2]",
        driver_memory="768m",
        java_options=" ".join(QUICK_START),
        jars=spark_jars()[0].parent,
    )
    return session.start(Settings(data=directory, spark=spark), "tests")


def stop_spark(running: SparkSession) -> None:
    session.stop(running)
