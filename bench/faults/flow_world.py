"""One broker and one Spark for all runs of a process: runs that need no process of their own share what is slow."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil

from bench.faults.committed import committed
from bench.faults.process import BrokerProcess
from bench.process_tree import rss_mb
from headrace.app import App
from headrace.client.cluster import Cluster
from tests.support.flows import FlowWorld, RunningApp
from tests.support.spark import compiled, start_spark, stop_spark

__all__ = ["batches", "jvm_peak_mb", "running", "world"]

_MEMORY = Path("/dev/shm")
_POLLING = "spark.sql.streaming.pollingDelay"


@functools.cache
def world() -> FlowWorld:
    """Started when it is first wanted, and stopped when the process ends. Nothing is killed here, so nothing needs a
    disk.
    """
    home = Path(
        tempfile.mkdtemp(prefix="headrace-flows-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    )
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    broker = BrokerProcess(home)
    atexit.register(broker.close)
    broker.start()
    spark = start_spark(home)
    atexit.register(stop_spark, spark)
    return FlowWorld(cast(Any, broker), Cluster(broker.bootstrap), spark, home)


@contextlib.contextmanager
def running(app: App, max_rows: int, **how: Any) -> Iterator[RunningApp]:
    """The app's flows and followers, ``how`` as for ``FlowWorld.running``. A flow without input asks for some a hundred
    times a second, while others still work; here it does so less often.
    """
    conf = world().spark.conf
    conf.set(_POLLING, "100ms")
    try:
        with compiled(world().spark), world().running(app, max_rows=max_rows, **how) as run:
            yield run
    finally:
        conf.unset(_POLLING)


def batches(bootstrap: str, flow: str) -> list[dict[str, Any]]:
    """The progress records of a flow's batches."""
    records = [json.loads(one.value()) for one in committed(bootstrap, f"{flow}.progress")]
    return [one for one in records if one["record"] == "batch"]


def jvm_peak_mb() -> float:
    """The most memory that the JVM of this process ever had."""
    java = next(one for one in psutil.Process().children() if one.name() == "java")
    return rss_mb(java.pid, "VmHWM")
