"""Time to verify a view, against the time to build it: a flow builds its view, then ``verify`` checks that view.

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

from bench.flow.context import QUERIES, FlowContext
from bench.flow.driver import Task
from bench.flow.host import Host
from bench.flow.pace import watch
from headrace.ops.verify.report import Report

__all__ = ["VerifyRates", "build_and_verify", "measure"]

_POLL_S = 0.02
_FOLLOW_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class VerifyRates:
    build_rate: float
    """Events per second, from the log to rows in the view."""
    verify_rate: float
    """Events per second that ``verify`` derives again and compares."""


def measure(context: FlowContext) -> None:
    peer = "the time in which the flow and its view were built"
    for query, title in QUERIES.items():
        for number in range(context.plan.rounds):
            task = context.task("flow+verify", query, f"{query}-proven-{number}", context.default_topic())
            rates = build_and_verify(context.host, task, context.plan.events)
            context.figures.add_comparison(
                f"verify, {title}", peer, rates.verify_rate, rates.build_rate, "events/s"
            )


def build_and_verify(host: Host, task: Task, total: int) -> VerifyRates:
    with host.run(task) as running:
        pace = watch(task.settings.checkpoints, total, lambda: 0.0, running.check)
        _wait_for(task.view_file, pace.batch, running.check)
        build_rate = pace.events / (time.time() - pace.began)
    report = msgspec.json.decode((task.data / "report.json").read_bytes(), type=Report)
    if not report.proven or report.records != total:
        raise SystemExit("\n".join(report.lines()))
    return VerifyRates(build_rate, total / report.seconds)


def _wait_for(view_file: Path, batch: int, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + _FOLLOW_TIMEOUT_S
    with contextlib.closing(sqlite3.connect(f"{view_file.absolute().as_uri()}?mode=ro", uri=True)) as view:
        while (row := view.execute("SELECT max(batch) FROM _headrace_views").fetchone()) < (batch,):
            check()
            if time.monotonic() > deadline:
                raise SystemExit(f"the view was at batch {row[0]} of {batch} after {_FOLLOW_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)
