"""Runs proofs, which compare views with the log, while the flows run: all views at an interval, or one on request.

A view that differs from the log is reported immediately as a warning, and stays in ``differs`` until the process ends.
If a view cannot be verified, because it is not built yet or the log does not respond, it is tried again next time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.generations import GenerationsCache
from headrace.errors import HeadraceError
from headrace.ops.verify.report import Report, flow_of
from headrace.ops.verify.verifier import Count, Say, Verifier
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compile.compiler import Compiled
    from headrace.model.schema import Schema

__all__ = ["POOL", "Proofs"]

POOL = "headrace.proofs"
"""The Spark scheduler pool of proofs. A proof shares the cores with the flows and does not block them."""


class Proofs:
    """Calls ``warn`` to report differences and ``note`` to report other results, in the thread that verifies."""

    def __init__(
        self,
        spark: SparkSession | None,
        cluster: Cluster,
        app: App,
        settings: Settings,
        compiled: Sequence[Compiled],
        schemas: Mapping[str, Schema],
        *,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._app = app
        self._settings = settings
        self._compiled = compiled
        self._schemas = schemas
        self._report_line = note
        self._warn = warn
        self._verifying = threading.Lock()
        """Only one proof runs at a time, because its memory grows with the rows that it derives."""
        self._generations = GenerationsCache(cluster)
        self._last: dict[str, str] = {}
        self._proven: dict[str, Report] = {}
        """The last report of each view."""
        self._differing: set[str] = set()

    @property
    def differs(self) -> list[str]:
        """The views in which any proof since the start found a difference."""
        return sorted(self._differing)

    def last(self, view: str) -> str:
        """Return the result and time of the view's last proof. Empty before the first proof.

        A proof belongs to a generation: it says nothing about the rows of another one.
        """
        report = self._proven.get(view)
        flow = flow_of(self._app, report) if report is not None else None
        if report is not None and flow is not None:
            with contextlib.suppress(LogError):
                generations = self._generations.get(flow)
                if generations is not None and generations.serving != report.generation:
                    return f"outdated, of generation {report.generation}"
        return self._last.get(view, "")

    def run(self, stop: threading.Event) -> None:
        every_s = self._settings.verify.every_s
        while not stop.wait(every_s):
            self._verify_all(stop)

    def cancel(self) -> None:
        """Cancel a running proof, so that the process can stop."""
        if self._spark is not None:
            self._spark.sparkContext.cancelJobGroup(POOL)

    def verify(self, name: str, say: Say, count: Count) -> Report:
        """Verify one view on request. Its result is recorded like that of a scheduled proof."""
        view = next(view for view in self._app.views if view.name == name)
        say(
            f"view {name}: waiting for another proof"
            if self._verifying.locked()
            else f"view {name}: starting"
        )
        with self._verifying, self._verifier(say, count) as verifier:
            report = verifier.view(view)
        self._record(report)
        return report

    def tasks(self) -> tuple[int, int] | None:
        """Return the finished and total Spark tasks of the running proof. None if no proof runs Spark tasks at this
        moment.
        """
        if self._spark is None:
            return None
        tracker = self._spark.sparkContext.statusTracker()
        done = total = 0
        for job in tracker.getJobIdsForGroup(POOL):
            info = tracker.getJobInfo(job)
            for stage_id in info.stageIds if info is not None and info.status == "RUNNING" else ():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done, total = done + stage.numCompletedTasks, total + stage.numTasks
        return (done, total) if total else None

    def _verifier(self, say: Say | None = None, count: Count | None = None) -> Verifier:
        """Create a verifier for the calling thread."""
        if self._spark is not None:
            context = self._spark.sparkContext
            context.setJobGroup(POOL, f"proofs of {self._app.name}", interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", POOL)
        arguments = (self._spark, self._cluster, self._app, self._settings, self._compiled, self._schemas)
        return (
            Verifier(*arguments)
            if say is None or count is None
            else Verifier(*arguments, say=say, count=count)
        )

    def _verify_all(self, stop: threading.Event) -> None:
        with self._verifying, self._verifier() as verifier:
            for view in self._app.views:
                if stop.is_set():
                    return
                try:
                    report = verifier.view(view)
                except HeadraceError as error:
                    if not stop.is_set():
                        self._note(view.name, f"not verified: {error.message}")
                    continue
                self._record(report)

    def _record(self, report: Report) -> None:
        if report.verdict == "different":
            self._differing.add(report.name)
            for line in report.lines():
                self._warn(line)
        elif report.proven:
            for line in report.short_lines()[1:]:
                self._warn(line)
        self._proven[report.name] = report
        through = f" through batch {report.batch}" if report.generation else ""
        results = {"different": "NOT AS DERIVED", "unprovable": "unprovable in part", "proven": "proven"}
        self._note(report.name, results[report.verdict] + through, report.line())

    def _note(self, view: str, result: str, line: str = "") -> None:
        """Store a result with its time. Report it if the verdict differs from the previous one."""
        previous, _, _ = self._last.get(view, "").partition(" at ")
        if result.partition(" through ")[0] != previous.partition(" through ")[0]:
            self._report_line(line or f"view {view}: {result}")
        self._last[view] = f"{result} at {datetime.now(UTC):%H:%M:%S}"
