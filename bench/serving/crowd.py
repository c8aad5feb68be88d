"""Many who follow one view while it changes, and what they cost the server: by ours, and by a bare broadcast."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.process_tree import cpu_s, pss_mb
from bench.serving.app import TICKS, of_ticks, view_of
from bench.serving.stand import ServeStand
from bench.serving.ticker import Ticker
from headrace.client.declaring import ensure_declared
from headrace.views.follower import Follower
from headrace.views.opening import open_store

__all__ = ["FRAME_MS", "Crowd", "beside", "following"]

FRAME_MS = 100
"""As ``serve.frame_ms`` is by itself."""
_FIRST_S = 120.0


@dataclass(frozen=True, slots=True)
class Crowd:
    p50_ms: float
    p99_ms: float
    frames: float
    """For each of them, per second."""
    frame_bytes: float
    cpu_s: float
    """Of the server, per second."""
    mb: float
    """Of the server, while they follow."""


def following(stand: ServeStand, clients: int) -> Crowd:
    """A server of its own, a follower that keeps the view in SQLite, and a topic that is written to."""
    plan, data = stand.plan, stand.folder(f"crowd-{clients}")
    app = of_ticks()
    view = view_of(app)
    ensure_declared(stand.cluster, view.topic, TICKS, 1)
    producer = stand.cluster.producer({"linger.ms": 0})

    def write(key: bytes, value: bytes) -> None:
        producer.produce(TICKS, value, key)
        producer.poll(0)

    stop = threading.Event()
    follower = Follower(view, [], stand.cluster, lambda: open_store(view, app.name, data))
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + _FIRST_S
        while follower.status.state != "following":
            if not thread.is_alive() or time.monotonic() > deadline:
                raise SystemExit(f"the follower has come to {follower.status}")
            time.sleep(0.01)
        with stand.serving(TICKS, data) as served:
            path = f"/v1/views/{TICKS}/changes"
            with _listening(served.port, path, clients) as listening, Ticker(plan.changes, write) as ticker:
                time.sleep(plan.warm_s)
                first, began, used = ticker.count, time.monotonic(), cpu_s(served.process.pid)
                time.sleep(plan.crowd_s)
                used = _since(used, served.process.pid) / (time.monotonic() - began)
                last, mb = ticker.count, pss_mb(served.process.pid)
                begin_us, end_us = ticker.due_us(first), ticker.due_us(last)
                told = _told(listening, begin_us, end_us, last - first)
        return Crowd(**told, cpu_s=used, mb=mb)
    finally:
        stop.set()
        thread.join()
        producer.flush(30)


def beside(stand: ServeStand, clients: int, frame_bytes: float) -> Crowd:
    """As many, of a bare broadcast of frames as long."""
    plan = stand.plan
    words = [str(plan.changes), str(FRAME_MS), str(round(frame_bytes))]
    command = [sys.executable, "-m", "bench.serving.broadcast", *words]
    with _program(command) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with _listening(port, "/", clients) as listening:
            time.sleep(plan.warm_s)
            began, used = time.monotonic(), cpu_s(process.pid)
            begin_us = time.monotonic_ns() // 1_000
            time.sleep(plan.crowd_s)
            used = _since(used, process.pid) / (time.monotonic() - began)
            mb = pss_mb(process.pid)
            # Which are due when is for the server to know: of what was due a moment ago, everybody is told.
            step_us = 1_000_000 // plan.changes
            count = (time.monotonic_ns() // 1_000 - begin_us) // step_us
            told = _told(listening, begin_us, begin_us + count * step_us, count)
    return Crowd(**told, cpu_s=used, mb=mb)


def _since(before_s: float, pid: int) -> float:
    """The kernel counts by the hundredth of a second: less is not there."""
    return max(0.01, cpu_s(pid) - before_s)


@contextlib.contextmanager
def _listening(port: int, path: str, clients: int) -> Iterator[subprocess.Popen[bytes]]:
    task = json.dumps({"port": port, "path": path, "clients": clients})
    with _program([sys.executable, "-m", "bench.serving.listeners", task]) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != b"ready":
            raise SystemExit("those who listen have ended")
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


def _told(process: subprocess.Popen[bytes], begin_us: int, end_us: int, count: int) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps([begin_us, end_us, end_us, count])}\n".encode())
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit("those who listen have ended")
    told: dict[str, float] = json.loads(line)
    return told
