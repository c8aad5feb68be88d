"""Settings and a Spark session for tests: small, fast to start, and separate from the app's own data and log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.settings import (
    SERVE_OFF,
    AlertSettings,
    BrokerSettings,
    LogSettings,
    MetricsSettings,
    ServeSettings,
    Settings,
    VerifySettings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["INTERPRETED", "local_settings", "local_spark"]

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Execute Spark plans in interpreted mode, because compiling them takes longer than executing them on a handful of
rows.
"""
_CODE_CACHE = "-XX:ReservedCodeCacheSize=256m"
"""Without the second JIT compiler, Java reserves 48 MB for compiled code. After some minutes of tests this space is
full, and Java spends a sixth of the CPU time on removing code that it soon compiles again.
"""
_DRIVER_MEMORY = "768m"
_POLLING = {"spark.sql.streaming.pollingDelay": "50ms"}
_SLOTS = 4
"""Slots for real-time flows, each of which occupies one slot per input partition."""


def local_settings(data: Path, base: Settings | None = None) -> Settings:
    """Return the settings of a test. ``base`` has the settings of flows, topics and views (default: those of
    ``headrace.toml`` and the environment). The log, the server, the metrics, the alerts and Spark's size are those of
    tests, whatever ``base`` has.
    """
    from headrace.flow.spark.jars import QUICK_START

    if base is None:
        from headrace.settings.loader import load

        base = load().settings
    spark = replace(
        base.spark,
        master="local[2]",
        driver_memory=_DRIVER_MEMORY,
        java_options=base.spark.java_options or " ".join((*QUICK_START, _CODE_CACHE)),
        conf={**INTERPRETED, **_POLLING, **base.spark.conf},
    )
    return replace(
        base,
        data=data,
        spark=spark,
        log=LogSettings(),
        broker=BrokerSettings(),
        verify=VerifySettings(),
        alerts=AlertSettings(every_s=0),
        metrics=MetricsSettings(),
        serve=ServeSettings(listen=SERVE_OFF),
    )


@contextlib.contextmanager
def local_spark(directory: Path, settings: Settings | None = None) -> Iterator[SparkSession]:
    """Run a Spark session with two cores. A process can have only one session at a time."""
    from headrace.flow.spark.session import start, stop

    session = start(local_settings(directory, settings), "tests", slots=_SLOTS)
    try:
        yield session
    finally:
        stop(session)
