"""Many subscribers of one changing view, and what they cost the server: for Headrace, and for a bare broadcast."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.serve.app import TICKS, only_view, ticks_app
from bench.serve.context import ServeContext
from bench.serve.ticker import Ticker
from faults.servers.process_tree import cpu_s, pss_mb
from headrace.client.declared_topics import ensure_declared
from headrace.follow.follower import Follower
from headrace.stores.registry import open_writer

__all__ = ["FRAME_MS", "Crowd", "measure_broadcast", "measure_headrace"]

FRAME_MS = 100
"""The default of ``serve.frame_ms``."""
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Crowd:
    p50_ms: float
    p99_ms: float
    frames: float
    """Frames per subscriber and second."""
    frame_bytes: float
    cpu_s: float
    """CPU seconds of the server, per second."""
    mb: float
    """Memory of the server while the subscribers follow."""


def measure_headrace(context: ServeContext, clients: int) -> Crowd:
    """Measure Headrace: a server, a follower that maintains the view in SQLite, and a topic with continuous changes."""
    plan, data = context.plan, context.folder(f"crowd-{clients}")
    app = ticks_app()
    view = only_view(app)
    ensure_declared(context.cluster, view.topic, TICKS, 1)
    producer = context.cluster.producer({"linger.ms": 0})

    def write(key: bytes, value: bytes) -> None:
        producer.produce(TICKS, value, key)
        producer.poll(0)

    stop = threading.Event()
    follower = Follower(view, [], context.cluster, lambda: open_writer(view, app.name, data))
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while follower.status.state != "following":
            if not thread.is_alive() or time.monotonic() > deadline:
                raise SystemExit(f"the follower is at {follower.status}")
            time.sleep(0.01)
        with context.serving(TICKS, data) as served:
            path = f"/v1/views/{TICKS}/changes"
            with (
                _subscribers(served.port, path, clients) as subscribers,
                Ticker(plan.changes, write) as ticker,
            ):
                time.sleep(plan.warm_s)
                first, began, used = ticker.count, time.monotonic(), cpu_s(served.process.pid)
                time.sleep(plan.crowd_s)
                used = _cpu_since(used, served.process.pid) / (time.monotonic() - began)
                last, mb = ticker.count, pss_mb(served.process.pid)
                begin_us, end_us = ticker.due_us(first), ticker.due_us(last)
                figures = _read_figures(subscribers, begin_us, end_us, last - first)
        return Crowd(**figures, cpu_s=used, mb=mb)
    finally:
        stop.set()
        thread.join()
        producer.flush(30)


def measure_broadcast(context: ServeContext, clients: int, frame_bytes: float) -> Crowd:
    """Measure a bare broadcast to as many subscribers, with frames of this length."""
    plan = context.plan
    arguments = [str(plan.changes), str(FRAME_MS), str(round(frame_bytes))]
    command = [sys.executable, "-m", "bench.serve.broadcast", *arguments]
    with _program(command) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with _subscribers(port, "/", clients) as subscribers:
            time.sleep(plan.warm_s)
            began, used = time.monotonic(), cpu_s(process.pid)
            begin_us = time.monotonic_ns() // 1_000
            time.sleep(plan.crowd_s)
            used = _cpu_since(used, process.pid) / (time.monotonic() - began)
            mb = pss_mb(process.pid)
            # Only the server knows when a change is due, so count the changes that were due until now.
            step_us = 1_000_000 // plan.changes
            count = (time.monotonic_ns() // 1_000 - begin_us) // step_us
            figures = _read_figures(subscribers, begin_us, begin_us + count * step_us, count)
    return Crowd(**figures, cpu_s=used, mb=mb)


def _cpu_since(before_s: float, pid: int) -> float:
    """Return the CPU seconds since then: at least 0.01, because the kernel counts hundredths of a second."""
    return max(0.01, cpu_s(pid) - before_s)


@contextlib.contextmanager
def _subscribers(port: int, path: str, clients: int) -> Iterator[subprocess.Popen[bytes]]:
    task = json.dumps({"port": port, "path": path, "clients": clients})
    with _program([sys.executable, "-m", "bench.serve.listeners", task]) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != b"ready":
            raise SystemExit("the subscribers' process has exited")
        yield process


@contextlib.contextmanager
def _program(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _read_figures(
    process: subprocess.Popen[bytes], begin_us: int, end_us: int, count: int
) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps([begin_us, end_us, end_us, count])}\n".encode())
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the subscribers' process has exited")
    figures: dict[str, float] = json.loads(line)
    return figures
