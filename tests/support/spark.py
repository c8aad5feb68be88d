"""One Spark for all tests that need it: local, small, with the Kafka connector from the pinned jars."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.jars import spark_jars
from tools.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["start_spark", "stop_spark"]


def start_spark(directory: Path) -> SparkSession:
    """Two cores, no web page, two shuffle partitions: as quick as Spark gets."""
    os.environ["JAVA_HOME"] = str(java_home())
    with warnings.catch_warnings():
        # PySpark's own imports warn of what Python has deprecated.
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        settings = {
            "spark.jars": ",".join(map(str, spark_jars())),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "768m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
            "spark.log.level": "ERROR",
        }
        builder = SparkSession.builder.master("local[2]").appName("headrace-wire")
        for name, value in settings.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()


def stop_spark(session: SparkSession) -> None:
    """Stop it and the JVM that PySpark leaves behind for the next session."""
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(20)
