"""How fast a view is proven, beside how fast it came about: a flow with its view, then ``verify`` of that view.

The driver does both, one after the other, over the same events with the same session.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.driver import Task
from bench.host import Host
from bench.pace import watch
from bench.stand import QUERIES, Stand
from headrace.ops.report import Report

__all__ = ["Proof", "measure", "prove"]

_LOOK_S = 0.02
_FOLLOWED_S = 300.0


@dataclass(frozen=True, slots=True)
class Proof:
    made: float
    """Events per second, from the log to rows in the view."""
    proven: float
    """Events per second, derived again and compared."""


def measure(stand: Stand) -> None:
    peer = "the flow and its view, when they came about"
    for query, title in QUERIES.items():
        for number in range(stand.plan.rounds):
            task = stand.task("flow+proof", query, f"{query}-proven-{number}", stand.orders())
            proof = prove(stand.host, task, stand.plan.events)
            stand.measured.both(f"verify, {title}", peer, proof.proven, proof.made, "events/s")


def prove(host: Host, task: Task, total: int) -> Proof:
    with host.run(task) as running:
        pace = watch(task.settings.checkpoints, total, lambda: 0.0, running.check)
        _wait_for(task.view_file, pace.batch, running.check)
        made = pace.events / (time.time() - pace.began)
    report = msgspec.json.decode((task.data / "proof.json").read_bytes(), type=Report)
    if not report.proven or report.records != total:
        raise SystemExit("\n".join(report.lines()))
    return Proof(made, total / report.seconds)


def _wait_for(view_file: Path, batch: int, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + _FOLLOWED_S
    with contextlib.closing(sqlite3.connect(f"{view_file.absolute().as_uri()}?mode=ro", uri=True)) as view:
        while (row := view.execute("SELECT max(batch) FROM _headrace_views").fetchone()) < (batch,):
            check()
            if time.monotonic() > deadline:
                raise SystemExit(f"the view was at batch {row[0]} of {batch} after {_FOLLOWED_S:.0f} s")
            time.sleep(_LOOK_S)
