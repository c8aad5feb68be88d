"""Reads the status of the app's parts for the server, which runs in the same process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.client.progress import Progress
from headrace.errors import HeadraceError
from headrace.follow.follower import Follower
from headrace.model.errors import AppError
from headrace.ops.lag.monitor import LagMonitor
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import Count, Say
from headrace.runtime.part import Part
from headrace.serve.errors import ProofNotAvailable
from headrace.serve.monitor.runtime_probe import Failure, FlowStatus, FollowerStatus, RuntimeStatus

if TYPE_CHECKING:
    from headrace.flow.runner import FlowRunner
    from headrace.runtime.run import Run

__all__ = ["RunProbe"]


class RunProbe:
    """The server starts before the flows, so every call reads the run's lists again."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._started_s = time.monotonic()
        self._failures: dict[str, Failure] = {}
        """The error of each failed part, with the time at which the probe first saw it."""

    @property
    def feed(self) -> str:
        return self._run.feed

    @property
    def lag_monitor(self) -> LagMonitor:
        return self._run.lag_monitor

    def status(self) -> RuntimeStatus:
        run = self._run
        flows, followers, parts = list(run.flows), list(run.followers), list(run.parts)
        failures = {part.name: self._failure(part) for part in parts if part.error is not None}
        spark_failure = self._spark_ended()
        phase = self._phase(len(flows))
        flow_statuses = {flow: FlowStatus("starting", phase) for flow in run.expected_flows}
        for runner in flows:
            name = runner.status.name
            flow_statuses[name] = _flow_status(runner, failures.pop(f"flow {name}", None), spark_failure)
        views = {
            follower.view.name: self._follower_status(
                follower, failures.pop(f"view {follower.view.name}", None)
            )
            for follower in followers
        }
        if run.broker_failure is not None:
            failures["the broker"] = self._remember("the broker", run.broker_failure)
        firing = run.alerts.firing if run.alerts is not None and "alerts" not in failures else None
        return RuntimeStatus(
            time.monotonic() - self._started_s, phase, flow_statuses, views, firing, failures
        )

    def plan(self, flow: str, chars_max: int) -> str | None:
        runner = next((runner for runner in list(self._run.flows) if runner.status.name == flow), None)
        if runner is None or self._spark_ended() is not None:
            return None
        return runner.plan(chars_max)

    def rules(self) -> Mapping[str, str] | None:
        alerts = self._run.alerts
        return None if alerts is None else {name: rule.text for name, rule in alerts.rules.items()}

    def expect_can(self, view: str) -> None:
        if self._run.proofs is None:
            raise ProofNotAvailable(
                f"view {view!r} cannot be verified yet: {self._phase(len(self._run.flows)) or 'the app is starting'}",
                hint="retry in a moment",
            )

    def verify(self, view: str, say: Say, count: Count) -> Report:
        assert self._run.proofs is not None
        return self._run.proofs.verify(view, say, count)

    def tasks(self) -> tuple[int, int] | None:
        proofs = self._run.proofs
        return None if proofs is None or self._spark_ended() is not None else proofs.tasks()

    def stop_verifying(self) -> None:
        if self._run.proofs is not None and self._spark_ended() is None:
            self._run.proofs.cancel()

    def _phase(self, started: int) -> str:
        run = self._run
        if started == len(run.expected_flows) or run.stop_requested.is_set():
            return ""
        if run.spark is None:
            return "starting Spark, then the flows"
        return f"{started} of {len(run.expected_flows)} flows started, in dependency order"

    def _spark_ended(self) -> Failure | None:
        if self._run.spark is None:
            return None
        from headrace.flow.spark.session import ended

        error = ended(self._run.spark)
        return None if error is None else self._remember("spark", error)

    def _follower_status(self, follower: Follower, failure: Failure | None) -> FollowerStatus:
        view, proofs = follower.view.name, self._run.proofs
        if proofs is None:
            return FollowerStatus(follower.status, failure)
        return FollowerStatus(follower.status, failure, proofs.last(view), view in proofs.differs)

    def _failure(self, part: Part) -> Failure:
        assert part.error is not None
        return self._remember(part.name, part.error)

    def _remember(self, name: str, error: HeadraceError) -> Failure:
        """Return the failure for an error. A repeated error keeps the time at which it was first seen."""
        failure = self._failures.get(name)
        if failure is None or failure.text != error.message:
            source = error.location if isinstance(error, AppError) else None
            file, line = (source.file, source.line) if source else ("", None)
            now_ms = time.time_ns() // 1_000_000
            failure = Failure(error.message, error.hint, now_ms, error.code, file, line)
            self._failures[name] = failure
        return failure


def _flow_status(
    runner: FlowRunner, part_failure: Failure | None, spark_failure: Failure | None
) -> FlowStatus:
    current = runner.current
    progress = Progress(current.generation, current.last, current.generation_offset) if current else None
    state, why = runner.status.state, runner.status.why
    recorded = runner.failure
    failure = (
        Failure(
            recorded.error.message,
            recorded.error.hint,
            recorded.at_ms,
            recorded.error.code,
            recorded.location.file if recorded.location else "",
            recorded.location.line if recorded.location else None,
        )
        if recorded
        else None
    )
    if spark_failure is not None:
        return FlowStatus("failed", spark_failure.text, progress, runner.took_ms, spark_failure)
    if part_failure is not None and failure is None:
        failure = part_failure
    if part_failure is not None:
        state = "failed"
        why = why or part_failure.text
    return FlowStatus(state, why, progress, runner.took_ms, failure)
