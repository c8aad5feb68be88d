"""Time from a command to its first derived row: ``headrace run examples.shop:app``, and a hand-written script.

Headrace also starts its broker, and its time ends when the row is visible in the view's file. The script has a running
broker that already contains the records, and its time ends when the row is in its topic.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.flow.context import FlowContext
from examples.shop import Category, Order, Product, orders, products
from faults.servers.headrace_broker import COMMAND, start_headrace
from headrace.client.cluster import Cluster
from headrace.flow.spark import java

__all__ = ["by_hand_s", "headrace_s", "interrupt", "measure", "start_process", "until", "write_first_records"]

_TIMEOUT_S = 180.0
_POLL_S = 0.005


def measure(context: FlowContext) -> None:
    row = "headrace run examples.shop:app, from the command to the first derived row"
    peer = "a hand-written PySpark script with a running broker, to the first row in its topic"
    for number, who in context.turns():
        home = context.home / f"start-{who}-{number}"
        context.figures.note(who, row, peer, (headrace_s if who == "us" else by_hand_s)(home), "s")


def headrace_s(home: Path) -> float:
    home.mkdir(parents=True)
    data = home / "data"
    command: list[str | Path] = [
        COMMAND,
        "run",
        "examples.shop:app",
        "--listen",
        "127.0.0.1:0",
        "--data",
        data,
    ]
    output = home / "output"
    began = time.monotonic()
    process = start_process(command, output)
    try:
        match = until(process, output, lambda: re.search(r"log at (\S+?),", output.read_text()))
        write_first_records(Cluster(match[1]))
        until(process, output, lambda: _has_row(data / "shop.db"))
        return time.monotonic() - began
    finally:
        interrupt(process)


def by_hand_s(home: Path) -> float:
    server = start_headrace(home / "broker")
    try:
        cluster = Cluster(server.bootstrap)
        cluster.ensure_topic("sales", 1)
        write_first_records(cluster)
        environment = {**os.environ, "JAVA_HOME": str(java.require().path.resolve().parents[1])}
        command = [
            sys.executable,
            "-m",
            "bench.flow.hand_written_shop",
            server.bootstrap,
            str(home / "checkpoint"),
        ]
        output = home / "output"
        began = time.monotonic()
        process = start_process(command, output, environment)
        try:
            until(process, output, lambda: any(cluster.ends("sales").values()))
            return time.monotonic() - began
        finally:
            interrupt(process)
    finally:
        server.stop()


def write_first_records(cluster: Cluster) -> None:
    for topic in (products, orders):
        cluster.ensure_topic(topic.name, 1)
    producer = cluster.producer()
    product = Product("p1", "a spade", Category.GARDEN, Decimal("12.50"))
    order = Order("o1", "c1", "p1", 2, datetime.now(UTC))
    for topic, instance in ((products, product), (orders, order)):
        key, value = topic.encode(instance)
        producer.produce(topic.name, value, key)
    if producer.flush(30):
        raise SystemExit("the shop's first records were not acknowledged")


def _has_row(file: Path) -> bool:
    if not file.is_file():
        return False
    with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as view:
        try:
            return view.execute("SELECT 1 FROM sales").fetchone() is not None
        except sqlite3.OperationalError:
            return False  # The table does not exist yet.


def start_process(
    command: Sequence[str | Path], output: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    with open(output, "wb") as out:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment
        )


def until(process: subprocess.Popen[bytes], output: Path, probe: Callable[[], Any]) -> Any:
    """Wait until ``probe`` returns a true value, and return it."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not (result := probe()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no row appeared; {process.args!r} printed:\n{output.read_text()[-4000:]}")
        time.sleep(_POLL_S)
    return result


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the process as at a terminal. PySpark's JVM ends with the script."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
