"""The shop of ``examples/shop`` at work as ``make run`` starts it, with its traffic, for tests of the page."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.client.cluster import Cluster
from tests.serve.http import Http
from tests.support.waiting import until, unwatch, watch_process
from tests.unit.repository.tracked import ROOT
from tools.java import QUICK_START

__all__ = ["START_S", "Shop", "running_shop"]

START_S = 700
"""Spark takes its time on a busy machine."""


@dataclass(frozen=True)
class Shop:
    http: Http
    cluster: Cluster

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    def now(self) -> dict[str, Any]:
        told: dict[str, Any] = self.http.get("/v1/app/now").expect(200)
        return told


@contextlib.contextmanager
def running_shop(home: Path) -> Iterator[Shop]:
    """Once every flow has derived something."""
    said, places = (
        home / "said",
        ("--listen", "127.0.0.1:0", "--serve", "127.0.0.1:0", "--data", str(home / "data")),
    )
    words = ("run", "examples.shop:app", "--feed", "examples.shop.traffic:feed", "--json", *places)
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "HEADRACE_SPARK__JAVA_OPTIONS": " ".join(QUICK_START)},
        )
    watch_process(process, "headrace run", said)
    try:
        page = until(lambda: _told(said, "the page is at http://127.0.0.1:"), "the page", START_S)
        log = until(lambda: _told(said, "log at "), "the log", START_S)
        shop = Shop(Http(int(page)), Cluster(log.split(",")[0], timeout_s=5.0))
        until(lambda: _derives(shop), "every flow to derive", START_S, 0.2)
        yield shop
    finally:
        unwatch(process)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def _told(said: Path, words: str) -> str:
    """What follows these words, once they are said."""
    text = said.read_text()
    lines = [
        json.loads(line).get("text", "") for line in text.splitlines(keepends=True) if line.endswith("}\n")
    ]
    return next((line.removeprefix(words) for line in lines if line.startswith(words)), "")


def _derives(shop: Shop) -> bool:
    nodes = shop.now()["nodes"]
    return all(one["rows_out"] > 0 for name, one in nodes.items() if name.startswith("flow:"))
