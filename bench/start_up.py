"""From a command to its first derived row: ``headrace run examples.shop:app``, and a script written by hand.

Ours starts its broker as well, and counts until the row is visible in the view's file; the script finds a broker that
is up, with the records in it, and counts until the row is in its topic.
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

from bench.stand import Stand
from examples.shop import Category, Order, Product, orders, products
from headrace.client.cluster import Cluster
from headrace.flow import java
from tests.support.embedded import COMMAND, start_headrace

__all__ = ["by_hand_s", "end", "headrace_s", "measure", "spawned", "until", "write_first"]

_PATIENCE_S = 180.0
_LOOK_S = 0.005


def measure(stand: Stand) -> None:
    row = "headrace run examples.shop:app, from the command to the first derived row"
    peer = "a PySpark script by hand, its broker up already, to the first row in its topic"
    for number, who in stand.turns():
        home = stand.home / f"start-{who}-{number}"
        stand.measured.note(who, row, peer, (headrace_s if who == "us" else by_hand_s)(home), "s")


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
    said = home / "said"
    began = time.monotonic()
    process = spawned(command, said)
    try:
        found = until(process, said, lambda: re.search(r"log at (\S+?),", said.read_text()))
        write_first(Cluster(found[1]))
        until(process, said, lambda: _has_row(data / "shop.db"))
        return time.monotonic() - began
    finally:
        end(process)


def by_hand_s(home: Path) -> float:
    server = start_headrace(home / "broker")
    try:
        cluster = Cluster(server.bootstrap)
        cluster.ensure_topic("sales", 1)
        write_first(cluster)
        environment = {**os.environ, "JAVA_HOME": str(java.require().path.resolve().parents[1])}
        command = [sys.executable, "-m", "bench.shop_by_hand", server.bootstrap, str(home / "checkpoint")]
        said = home / "said"
        began = time.monotonic()
        process = spawned(command, said, environment)
        try:
            until(process, said, lambda: any(cluster.ends("sales").values()))
            return time.monotonic() - began
        finally:
            end(process)
    finally:
        server.stop()


def write_first(cluster: Cluster) -> None:
    for topic in (products, orders):
        cluster.ensure_topic(topic.name, 1)
    producer = cluster.producer()
    product = Product("p1", "a spade", Category.GARDEN, Decimal("12.50"))
    order = Order("o1", "c1", "p1", 2, datetime.now(UTC))
    for topic, said in ((products, product), (orders, order)):
        key, value = topic.encode(said)
        producer.produce(topic.name, value, key)
    if producer.flush(30):
        raise SystemExit("the shop's first records were not taken")


def _has_row(file: Path) -> bool:
    if not file.is_file():
        return False
    with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as view:
        try:
            return view.execute("SELECT 1 FROM sales").fetchone() is not None
        except sqlite3.OperationalError:
            return False  # There is no such table yet.


def spawned(
    command: Sequence[str | Path], said: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    with open(said, "wb") as out:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment
        )


def until(process: subprocess.Popen[bytes], said: Path, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := look()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"there is no first row; {process.args!r} said:\n{said.read_text()[-4000:]}")
        time.sleep(_LOOK_S)
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """As somebody at a terminal would; PySpark's JVM ends with the script."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
