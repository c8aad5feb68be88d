"""Memory of ``headrace run`` on the shop with its traffic: log, Spark, flows, views.

The peer is what a user would run instead: Apache Kafka, and a PySpark script with the same four derivations, from topic
to topic. The peer has no views, so it does less. Each process and its children count with their proportional share of
memory (PSS). The figure is the median of the second half of the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.flow.context import FlowContext
from bench.flow.start_up import interrupt, start_process, until, write_first_records
from bench.log.log_server import kafka
from examples.shop import app
from examples.shop.traffic import feed
from faults.servers.headrace_broker import COMMAND
from faults.servers.process_tree import pss_mb
from headrace.client.cluster import Cluster
from headrace.flow.spark import java
from headrace.runtime.part import Part

__all__ = ["measure"]

_ROW = "memory of headrace run examples.shop:app with its traffic (PSS)"
_PEER = "Apache Kafka and a PySpark script by hand with the same derivations, without views"
_POLL_S = 1.0
_STOP_S = 120.0

MeasuredLog = tuple[Cluster, list[int]]
"""The address of the log, and the processes whose memory counts."""


def measure(context: FlowContext) -> None:
    for number, who in context.turns():
        home = context.home / f"memory-{who}-{number}"
        home.mkdir()
        with (
            _run_headrace(home) if who == "us" else _run_kafka_and_script(home) as (cluster, pids),
            _traffic(cluster),
        ):
            used_mb = _median_mb(pids, context.plan.memory_s)
        context.figures.note(who, _ROW, _PEER, used_mb, "MB")


@contextlib.contextmanager
def _run_headrace(home: Path) -> Iterator[MeasuredLog]:
    output = home / "output"
    arguments = ["run", "examples.shop:app", "--listen", "127.0.0.1:0", "--data", str(home / "data")]
    process = start_process([COMMAND, *arguments], output)
    try:
        match = until(process, output, lambda: re.search(r"log at (\S+?),", output.read_text()))
        cluster = Cluster(match[1])
        write_first_records(cluster)
        until(process, output, lambda: _has_ranking(cluster))
        yield cluster, [process.pid]
    finally:
        interrupt(process)


@contextlib.contextmanager
def _run_kafka_and_script(home: Path) -> Iterator[MeasuredLog]:
    server = kafka({})(home / "kafka")
    server.stop_timeout_s = _STOP_S
    try:
        cluster = Cluster(server.bootstrap)
        for topic in app.topics:
            cluster.ensure_topic(topic.name, 1)
        write_first_records(cluster)
        environment = {**os.environ, "JAVA_HOME": str(java.require().path.resolve().parents[1])}
        arguments = ["-m", "bench.flow.hand_written_shop", server.bootstrap, str(home / "checkpoints"), "all"]
        output = home / "output"
        process = start_process([sys.executable, *arguments], output, environment)
        try:
            until(process, output, lambda: _has_ranking(cluster))
            yield cluster, [process.pid, server.process.pid]
        finally:
            interrupt(process)
    finally:
        server.stop()


def _has_ranking(cluster: Cluster) -> bool:
    return cluster.topic("ranking") is not None and any(cluster.ends("ranking").values())


@contextlib.contextmanager
def _traffic(cluster: Cluster) -> Iterator[None]:
    stopping = threading.Event()
    part = Part("the shop's traffic", lambda stop: feed(cluster, stop), stopping)
    part.start()
    try:
        yield
    finally:
        stopping.set()
        part.join(_STOP_S)
    if part.error is not None:
        raise part.error


def _median_mb(pids: list[int], half_s: float) -> float:
    time.sleep(half_s)
    samples_mb = []
    end_s = time.monotonic() + half_s
    while time.monotonic() < end_s:
        samples_mb.append(pss_mb(*pids))
        time.sleep(_POLL_S)
    return statistics.median(samples_mb)
