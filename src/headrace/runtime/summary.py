"""Summarizes a running app for displays, and returns the positions of its parts for the lag monitor."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.client.progress import Progress
from headrace.follow.follower import Follower
from headrace.model.declarations import Flow, View
from headrace.ops.lag.reader import ViewPosition

if TYPE_CHECKING:
    from headrace.flow.runner import FlowRunner
    from headrace.runtime.run import Run

__all__ = ["AlertSummary", "FlowSummary", "RunPositions", "RunSummary", "Summarizer", "ViewSummary"]


@dataclass(frozen=True, slots=True)
class FlowSummary:
    name: str
    state: str
    why: str
    generation: int
    batch: int | None
    rows_per_s: float
    """Rows read per second since the last summary."""
    rows_in: int
    rows_out: int
    lag: int
    """Records of its inputs that it has not read yet. For a real-time flow: records after its last progress record."""
    watermark_us: int | None
    state_rows: int
    late: int
    dead: int
    latency: str = "batch"


@dataclass(frozen=True, slots=True)
class ViewSummary:
    name: str
    state: str
    why: str
    applied: int
    per_s: float
    lag: int
    dead: int
    foreign: int = 0
    """Records in the flow's topic that the flow did not write."""
    repeats: int = 0
    """Rows that a real-time flow wrote again and the view skipped."""
    verified: str = ""
    """Result and time of the last proof. Empty before the first proof."""
    differs: bool = False
    """Whether any proof since the start found a difference."""


@dataclass(frozen=True, slots=True)
class AlertSummary:
    """An alert that is firing."""

    alert: str
    text: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    at_s: float
    flows: list[FlowSummary] = field(default_factory=list)
    views: list[ViewSummary] = field(default_factory=list)
    alerts: list[AlertSummary] = field(default_factory=list)


class Summarizer:
    """Summarizes a run. It keeps the last counts, to compute rates."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._started_s = time.monotonic()
        self._last_counts: dict[str, tuple[float, int]] = {}

    def summarize(self) -> RunSummary:
        now = time.monotonic()
        alerts = self._run.alerts.firing if self._run.alerts else []
        return RunSummary(
            round(now - self._started_s, 1),
            [self._flow(runner, now) for runner in self._run.flows],
            [self._view(follower, now) for follower in self._run.followers],
            [AlertSummary(alert.alert, alert.text, alert.since_ms) for alert in alerts],
        )

    def _flow(self, runner: FlowRunner, now: float) -> FlowSummary:
        current = runner.current
        last = current.last if current else None
        rows_in = last.totals.rows_in if last else 0
        return FlowSummary(
            name=runner.status.name,
            state=runner.status.state,
            why=runner.status.why,
            generation=current.generation.generation if current else 0,
            batch=last.batch if last else None,
            rows_per_s=self._rate(f"flow {runner.status.name}", now, rows_in),
            rows_in=rows_in,
            rows_out=last.totals.rows_out if last else 0,
            lag=runner.lag(),
            watermark_us=last.next_watermark_us if last else None,
            state_rows=last.state_rows if last else 0,
            late=last.totals.late if last else 0,
            dead=last.totals.dead + last.totals.table_dead if last else 0,
            latency=runner.latency,
        )

    def _view(self, follower: Follower, now: float) -> ViewSummary:
        status, proofs = follower.status, self._run.proofs
        return ViewSummary(
            name=status.view,
            state=status.state,
            why=status.reason,
            applied=status.applied,
            per_s=self._rate(f"view {status.view}", now, status.applied),
            lag=status.lag,
            dead=status.dead,
            foreign=status.foreign,
            repeats=status.repeats,
            verified=proofs.last(status.view) if proofs else "",
            differs=proofs is not None and status.view in proofs.differs,
        )

    def _rate(self, name: str, now: float, count: int) -> float:
        previous = self._last_counts.get(name)
        self._last_counts[name] = (now, count)
        if previous is None or now <= previous[0]:
            return 0.0
        return max(0.0, (count - previous[1]) / (now - previous[0]))


class RunPositions:
    """Reads the positions of a run's flows and views from memory. It copies the lists, which can grow meanwhile."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def running_progress(self, flow: Flow) -> Progress | None:
        runners = (runner for runner in list(self._run.flows) if runner.status.name == flow.name)
        current = next((runner.current for runner in runners), None)
        if current is None or not current.is_serving:
            # Another process derives the serving generation, or none does.
            return None
        return Progress(current.generation, current.last, current.generation_offset)

    def view_position(self, view: View) -> ViewPosition:
        followers = (follower for follower in list(self._run.followers) if follower.view.name == view.name)
        status = next((follower.status for follower in followers), None)
        return ViewPosition.of(status.state, status.position) if status else ViewPosition("not followed")
