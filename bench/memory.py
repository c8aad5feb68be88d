"""How much memory the whole of ``headrace run`` takes, on the shop with its traffic: log, Spark, flows, views.

The peer is what somebody would run instead: Apache Kafka, and a PySpark script with the same four derivations, topic to
topic. It has no views, so it does less. Each process counts with its share of what it shares (PSS), and so do all that
it has started; the figure is the median of the second half of the run.
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

from bench.contestant import kafka
from bench.process_tree import pss_mb
from bench.stand import Stand
from bench.start_up import end, spawned, until, write_first
from examples.shop import app
from examples.shop.traffic import feed
from headrace.client.cluster import Cluster
from headrace.flow import java
from headrace.runtime.part import Part
from tests.support.embedded import COMMAND

__all__ = ["measure"]

_ROW = "memory of headrace run examples.shop:app with its traffic (PSS)"
_PEER = "Apache Kafka and a PySpark script by hand with the same derivations, without views"
_LOOK_S = 1.0
_STOP_S = 120.0

Running = tuple[Cluster, list[int]]
"""The log, and the processes that count."""


def measure(stand: Stand) -> None:
    for number, who in stand.turns():
        home = stand.home / f"memory-{who}-{number}"
        home.mkdir()
        with _ours(home) if who == "us" else _theirs(home) as (cluster, pids), _traffic(cluster):
            used = _median_mb(pids, stand.plan.memory_s)
        stand.measured.note(who, _ROW, _PEER, used, "MB")


@contextlib.contextmanager
def _ours(home: Path) -> Iterator[Running]:
    said = home / "said"
    words = ["run", "examples.shop:app", "--listen", "127.0.0.1:0", "--data", str(home / "data")]
    process = spawned([COMMAND, *words], said)
    try:
        found = until(process, said, lambda: re.search(r"log at (\S+?),", said.read_text()))
        cluster = Cluster(found[1])
        write_first(cluster)
        until(process, said, lambda: _is_derived(cluster))
        yield cluster, [process.pid]
    finally:
        end(process)


@contextlib.contextmanager
def _theirs(home: Path) -> Iterator[Running]:
    server = kafka({})(home / "kafka")
    server.stop_timeout_s = _STOP_S
    try:
        cluster = Cluster(server.bootstrap)
        for topic in app.topics:
            cluster.ensure_topic(topic.name, 1)
        write_first(cluster)
        environment = {**os.environ, "JAVA_HOME": str(java.require().path.resolve().parents[1])}
        words = ["-m", "bench.shop_by_hand", server.bootstrap, str(home / "checkpoints"), "all"]
        said = home / "said"
        process = spawned([sys.executable, *words], said, environment)
        try:
            until(process, said, lambda: _is_derived(cluster))
            yield cluster, [process.pid, server.process.pid]
        finally:
            end(process)
    finally:
        server.stop()


def _is_derived(cluster: Cluster) -> bool:
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
    found = []
    until_then = time.monotonic() + half_s
    while time.monotonic() < until_then:
        found.append(pss_mb(*pids))
        time.sleep(_LOOK_S)
    return statistics.median(found)
