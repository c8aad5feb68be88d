"""One broker and one Spark session for all fault runs of a process that kill neither the broker nor Spark."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil

from faults.committed_records import committed_json
from faults.flows.world import FlowWorld, RunningApp
from faults.servers.broker_process import BrokerProcess
from faults.servers.process_tree import rss_mb
from faults.servers.spark import compiled, session_conf, start_spark, stop_spark
from headrace.app import App
from headrace.client.cluster import Cluster

__all__ = ["batches", "close", "jvm_peak_mb", "running", "world"]

_MEMORY = Path("/dev/shm")
_POLLING = "spark.sql.streaming.pollingDelay"


_open = contextlib.ExitStack()


@functools.cache
def world() -> FlowWorld:
    """Return the world of this process; the first call starts it. No run kills it, so its files can be in memory."""
    home = Path(
        tempfile.mkdtemp(prefix="headrace-flows-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    )
    _open.callback(shutil.rmtree, home, ignore_errors=True)
    broker = _open.enter_context(contextlib.closing(BrokerProcess(home)))
    broker.start()
    spark = start_spark(home)
    _open.callback(stop_spark, spark)
    return FlowWorld(cast(Any, broker), Cluster(broker.bootstrap), spark, home)


@atexit.register
def close() -> None:
    """Stop the world. The next call of ``world`` starts another one."""
    world.cache_clear()
    _open.close()


@contextlib.contextmanager
def running(app: App, max_rows: int, **options: Any) -> Iterator[RunningApp]:
    """Run the app's flows and followers. ``options`` are passed to ``FlowWorld.running``. A flow without input polls
    only ten times a second, so that it takes less CPU time from the flows that have input.
    """
    spark = world().spark
    with (
        session_conf(spark, {_POLLING: "100ms"}),
        compiled(spark),
        world().running(app, max_rows=max_rows, **options) as run,
    ):
        yield run


def batches(bootstrap: str, flow: str, generation: int = 1) -> list[dict[str, Any]]:
    """Return the progress records of a generation's batches. ``flow`` is ``<app>.<flow>``."""
    topic = f"{flow}.progress" if generation == 1 else f"{flow}.g{generation}.progress"
    return [record for record in committed_json(bootstrap, topic) if record["record"] == "batch"]


def jvm_peak_mb() -> float:
    """Return the peak memory of the JVM of this process."""
    java = next(child for child in psutil.Process().children() if child.name() == "java")
    return rss_mb(java.pid, "VmHWM")
