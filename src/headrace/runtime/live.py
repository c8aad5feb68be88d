"""What a run knows of its parts, for the server beside it: from memory, at any moment of the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.client.progress_log import Progress
from headrace.errors import HeadraceError
from headrace.model.errors import AppError
from headrace.ops.report import Report
from headrace.ops.verify import Count, Say
from headrace.runtime.part import Part
from headrace.serve.errors import ProofElsewhere
from headrace.serve.live import Failure, LiveFlow, LiveLook, LiveView
from headrace.views.follower import Follower

if TYPE_CHECKING:
    from headrace.flow.runner import FlowRunner
    from headrace.runtime.run import Run

__all__ = ["RunLive"]


class RunLive:
    """The server is there before the flows are: so the run's lists are looked at anew each time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._began = time.monotonic()
        self._failures: dict[str, Failure] = {}
        """Of parts, by their names: when each was first seen to have ended."""

    @property
    def feed(self) -> str:
        return self._run.feed

    def look(self) -> LiveLook:
        run = self._run
        flows, followers, parts = list(run.flows), list(run.followers), list(run.parts)
        failures = {part.name: self._failure(part) for part in parts if part.error is not None}
        ended = self._spark_ended()
        phase = self._phase(len(flows))
        looks = {flow: LiveFlow("starting", phase) for flow in run.expected_flows}
        for runner in flows:
            name = runner.status.name
            looks[name] = _flow_look(runner, failures.pop(f"flow {name}", None), ended)
        views = {
            one.view.name: self._view_look(one, failures.pop(f"view {one.view.name}", None))
            for one in followers
        }
        if run.broker_failure is not None:
            failures["the broker"] = self._told("the broker", run.broker_failure)
        firing = run.alerts.firing if run.alerts is not None and "alerts" not in failures else None
        return LiveLook(time.monotonic() - self._began, phase, looks, views, firing, failures)

    def plan(self, flow: str, chars_max: int) -> str | None:
        runner = next((one for one in list(self._run.flows) if one.status.name == flow), None)
        if runner is None or self._spark_ended() is not None:
            return None
        return runner.plan(chars_max)

    def rules(self) -> Mapping[str, str] | None:
        alerts = self._run.alerts
        return None if alerts is None else {name: rule.text for name, rule in alerts.rules.items()}

    def expect_can(self, view: str) -> None:
        if self._run.proofs is None:
            raise ProofElsewhere(
                f"view {view!r} cannot be verified yet: {self._phase(len(self._run.flows)) or 'the run begins'}",
                hint="ask again in a moment",
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

    def _phase(self, begun: int) -> str:
        run = self._run
        if begun == len(run.expected_flows) or run.stop_asked.is_set():
            return ""
        if run.spark is None:
            return "Spark is being started, and the flows behind it"
        return f"{begun} of {len(run.expected_flows)} flows are begun, each behind those that it reads from"

    def _spark_ended(self) -> Failure | None:
        if self._run.spark is None:
            return None
        from headrace.flow.session import ended

        error = ended(self._run.spark)
        return None if error is None else self._told("spark", error)

    def _view_look(self, follower: Follower, failure: Failure | None) -> LiveView:
        view, proofs = follower.view.name, self._run.proofs
        if proofs is None:
            return LiveView(follower.status, failure)
        return LiveView(follower.status, failure, proofs.last(view), view in proofs.differs)

    def _failure(self, part: Part) -> Failure:
        assert part.error is not None
        return self._told(part.name, part.error)

    def _told(self, name: str, error: HeadraceError) -> Failure:
        """Of one error the same each time, with when it was first seen."""
        known = self._failures.get(name)
        if known is None or known.text != error.message:
            place = error.place if isinstance(error, AppError) else None
            file, line = (place.file, place.line) if place else ("", None)
            now_ms = time.time_ns() // 1_000_000
            known = Failure(error.message, error.hint, now_ms, error.code, file, line)
            self._failures[name] = known
        return known


def _flow_look(runner: FlowRunner, ended: Failure | None, spark: Failure | None) -> LiveFlow:
    opened = runner.current
    progress = Progress(opened.generation, opened.last, opened.generation_offset) if opened else None
    state, why = runner.status.state, runner.status.why
    noted = runner.failure
    failure = (
        Failure(
            noted.error.message,
            noted.error.hint,
            noted.at_ms,
            noted.error.code,
            noted.place.file if noted.place else "",
            noted.place.line if noted.place else None,
        )
        if noted
        else None
    )
    if spark is not None:
        return LiveFlow("failed", spark.text, progress, runner.took_ms, spark)
    if ended is not None and failure is None:
        failure = ended
    if ended is not None:
        state = "failed"
        why = why or ended.text
    return LiveFlow(state, why, progress, runner.took_ms, failure)
