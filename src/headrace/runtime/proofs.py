"""Proofs of the views of a running app, beside everything else: of all again and again, or of one that is asked for.

A view that is not as derived is told of at once and loudly, and not forgotten: whoever ends the run asks ``differs``.
What could not be verified, because the view is not built yet or the log does not answer, is tried again next time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.ops.report import Report
from headrace.ops.verify import Count, Say, Verifier
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compiled import Compiled
    from headrace.model.schema import Schema

__all__ = ["POOL", "Proofs"]

POOL = "headrace.proofs"
"""Of Spark's scheduler: a proof shares the cores with the flows, and does not hold them up."""


class Proofs:
    """``warn`` takes what must not be missed, ``tell`` everything else; both from the thread that proves."""

    def __init__(
        self,
        spark: SparkSession | None,
        cluster: Cluster,
        app: App,
        settings: Settings,
        compiled: Sequence[Compiled],
        schemas: Mapping[str, Schema],
        *,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._app = app
        self._settings = settings
        self._compiled = compiled
        self._schemas = schemas
        self._tell = tell
        self._warn = warn
        self._one = threading.Lock()
        """One proof at a time: each takes as much memory as it derives."""
        self._last: dict[str, str] = {}
        self._differing: set[str] = set()

    @property
    def differs(self) -> list[str]:
        """The views that were found not to be as derived, at any time since the start."""
        return sorted(self._differing)

    def last(self, view: str) -> str:
        """How the last proof of it went, and when; empty before the first."""
        return self._last.get(view, "")

    def run(self, stop: threading.Event) -> None:
        every_s = self._settings.verify.every_s
        while not stop.wait(every_s):
            self._round(stop)

    def cancel(self) -> None:
        """So that the end of the run need not wait for a proof under way."""
        if self._spark is not None:
            self._spark.sparkContext.cancelJobGroup(POOL)

    def verify(self, name: str, say: Say, count: Count) -> Report:
        """One that is asked for; it counts like any other."""
        view = next(one for one in self._app.views if one.name == name)
        say(f"view {name}: waiting for another proof" if self._one.locked() else f"view {name}: begins")
        with self._one, self._verifier(say, count) as verifier:
            report = verifier.view(view)
        self._take(report)
        return report

    def tasks(self) -> tuple[int, int] | None:
        """Of the proof under way, the tasks that Spark has done and has in all; None where it does none."""
        if self._spark is None:
            return None
        tracker = self._spark.sparkContext.statusTracker()
        done = of = 0
        for job in tracker.getJobIdsForGroup(POOL):
            told = tracker.getJobInfo(job)
            for stage in told.stageIds if told is not None and told.status == "RUNNING" else ():
                found = tracker.getStageInfo(stage)
                if found is not None:
                    done, of = done + found.numCompletedTasks, of + found.numTasks
        return (done, of) if of else None

    def _verifier(self, say: Say | None = None, count: Count | None = None) -> Verifier:
        """For the thread that calls."""
        if self._spark is not None:
            context = self._spark.sparkContext
            context.setJobGroup(POOL, f"proofs of {self._app.name}", interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", POOL)
        where = (self._spark, self._cluster, self._app, self._settings, self._compiled, self._schemas)
        return Verifier(*where) if say is None or count is None else Verifier(*where, say=say, count=count)

    def _round(self, stop: threading.Event) -> None:
        with self._one, self._verifier() as verifier:
            for view in self._app.views:
                if stop.is_set():
                    return
                try:
                    report = verifier.view(view)
                except HeadraceError as error:
                    if not stop.is_set():
                        self._note(view.name, f"not verified: {error.message}")
                    continue
                self._take(report)

    def _take(self, report: Report) -> None:
        if report.verdict == "different":
            self._differing.add(report.name)
            for line in report.lines():
                self._warn(line)
        through = f" through batch {report.batch}" if report.generation else ""
        told = {"different": "NOT AS DERIVED", "unprovable": "unprovable in part", "proven": "proven"}
        self._note(report.name, told[report.verdict] + through, report.line())

    def _note(self, view: str, told: str, line: str = "") -> None:
        """Said once, until something else is to be said; the display has each with its time."""
        before, _, _ = self._last.get(view, "").partition(" at ")
        if told.partition(" through ")[0] != before.partition(" through ")[0]:
            self._tell(line or f"view {view}: {told}")
        self._last[view] = f"{told} at {datetime.now(UTC):%H:%M:%S}"
