"""``examples/shop`` as ``make run`` starts it, with its traffic, for tests of the page."""

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

from faults.serve.http import Http
from faults.wait import until, unwatch, watch_process
from headrace.client.cluster import Cluster
from tests.unit.repository.tracked import ROOT
from tools.java import QUICK_START

__all__ = ["Shop", "running_shop"]

_START_S = 700
"""Spark starts slowly on a busy machine."""
_ENVIRONMENT = {
    "HEADRACE_SPARK__JAVA_OPTIONS": " ".join(QUICK_START),
    # Without a pause between batches, four flows would use all cores of the machine during the whole test.
    "HEADRACE_FLOW__TRIGGER_MS": "2000",
}


@dataclass(frozen=True)
class Shop:
    http: Http
    cluster: Cluster

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"


@contextlib.contextmanager
def running_shop(home: Path) -> Iterator[Shop]:
    """The shop, after every flow has derived its first rows."""
    output = home / "output"
    options = ("--listen", "127.0.0.1:0", "--serve", "127.0.0.1:0", "--data", str(home / "data"), "--json")
    command = ("run", "examples.shop:app", "--feed", "examples.shop.traffic:feed", *options)
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **_ENVIRONMENT},
        )
    watch_process(process, "headrace run", output)
    try:
        port = until(lambda: _text_after("the web UI is at http://127.0.0.1:", output), "the page", _START_S)
        log = until(lambda: _text_after("log at ", output), "the log", _START_S)
        shop = Shop(Http(int(port)), Cluster(log.split(",")[0], timeout_s=5.0))
        until(lambda: _has_derived(shop), "rows of every flow", _START_S, 0.2)
        yield shop
    finally:
        unwatch(process)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def _text_after(prefix: str, output: Path) -> str:
    """The rest of the first message with this prefix; empty until it is printed."""
    lines = [line for line in output.read_text().splitlines(keepends=True) if line.endswith("}\n")]
    texts = [json.loads(line).get("text", "") for line in lines]
    return next((text.removeprefix(prefix) for text in texts if text.startswith(prefix)), "")


def _has_derived(shop: Shop) -> bool:
    nodes = shop.http.get("/v1/app/now").expect(200)["nodes"]
    return all(node["rows_out"] > 0 for name, node in nodes.items() if name.startswith("flow:"))
