"""Verifies views and flows: compares the served rows with the rows that follow from the log.

For a view of a flow's topic, the flow's function derives the rows again, up to the view's batch, and the rows are
compared. This uses no code of followers. For a view of a topic that no flow writes, the rows are compared with the last
record of each key. A flow's topic must have every derived row once. If the flow was rebuilt, its stable topic, which
other readers read, must have the rows of the generation that serves.

A proven report covers one step: from the flow's input topics to the served rows. ``Verifier.all`` verifies all steps of
an app, including the topics of flows. Together these reports prove every step from the app's input topics to the views.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.files import make_private_dir
from headrace.model.declarations import Flow, View
from headrace.model.graph import order
from headrace.ops.verify.errors import CannotVerify
from headrace.ops.verify.outdated import view_digest
from headrace.ops.verify.report import Report, save_report
from headrace.ops.verify.snapshot import read_snapshot
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compile.compiler import Compiled
    from headrace.model.schema import Schema
    from headrace.ops.verify.derivation import Derivations

__all__ = ["Count", "Say", "Verifier", "verify_view"]

Say = Callable[[str], None]
Count = Callable[[int, int], None]
"""Called with the number of offsets that were read, and their total."""


def _ignore_line(line: str) -> None:
    pass


def _ignore_count(done: int, total: int) -> None:
    pass


def verify_view(
    spark: SparkSession | None,
    cluster: Cluster,
    app: App,
    view: View,
    settings: Settings,
    compiled: Sequence[Compiled],
    schemas: Mapping[str, Schema],
    *,
    sample: int = 10,
    say: Say = _ignore_line,
) -> Report:
    """Verify one view, and write the report to the log. ``spark`` is needed only for a view of a flow's topic."""
    with Verifier(spark, cluster, app, settings, compiled, schemas, sample=sample, say=say) as verifier:
        return verifier.view(view)


class Verifier:
    """Verifies several views and flows. A view and its flow's topic share one derivation."""

    def __init__(
        self,
        spark: SparkSession | None,
        cluster: Cluster,
        app: App,
        settings: Settings,
        compiled: Sequence[Compiled],
        schemas: Mapping[str, Schema],
        *,
        sample: int = 10,
        say: Say = _ignore_line,
        count: Count = _ignore_count,
    ) -> None:
        self._cluster = cluster
        self._app = app
        self._settings = settings
        self._sample = sample
        self._say = say
        self._count = count
        self._derivations: Derivations | None = None
        if spark is not None:
            from headrace.ops.verify.derivation import Derivations

            self._derivations = Derivations(spark, cluster, settings, compiled, schemas, say)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._derivations is not None:
            self._derivations.close()

    def all(self) -> Iterator[Report | CannotVerify]:
        """Verify every view and the topic of every flow, inputs first."""
        for view in self._app.views:
            if self._app.writer_of(view.topic) is None:
                yield self.attempt(lambda view=view: self.view(view))  # type: ignore[misc]
        for flow in order(self._app):
            through = None
            for view in self._app.views:
                if self._app.writer_of(view.topic) is flow:
                    report = self.attempt(lambda view=view: self.view(view))  # type: ignore[misc]
                    through = (report.generation, report.batch) if isinstance(report, Report) else None
                    yield report
            yield self.attempt(lambda flow=flow, through=through: self.flow(flow, through))  # type: ignore[misc]

    @staticmethod
    def attempt(run: Callable[[], Report]) -> Report | CannotVerify:
        """Return the error of a verification that cannot run, so that the other verifications continue."""
        try:
            return run()
        except CannotVerify as error:
            return error

    def view(self, view: View) -> Report:
        began_ms, started_s = time.time_ns() // 1_000_000, time.monotonic()
        self._say(f"view {view.name}: reading the store")
        with self._folder() as folder:
            snapshot, scratch = read_snapshot(folder, view, self._app.name, self._settings.data)
            try:
                report = Report(app=self._app.name, what="view", name=view.name, topic=snapshot.topic)
                report.generation, report.batch = snapshot.generation, snapshot.batch
                report.topic_id, report.view_digest = snapshot.topic_id, view_digest(self._app, view)
                report.offsets = {str(number): offset for number, offset in snapshot.offsets.items()}
                flow = self._app.writer_of(view.topic)
                report.flow = flow.name if flow is not None else ""
                if flow is None:
                    from headrace.ops.verify.topic_view import check_topic_view

                    self._say(f"view {view.name}: folding topic {snapshot.topic}")
                    check_topic_view(
                        self._cluster, view, snapshot, scratch, report, self._sample, self._count
                    )
                else:
                    from headrace.ops.verify.flow_view import FlowView

                    derivations = self._require_derivations(flow)
                    context = (
                        *(self._cluster, view, flow, snapshot),
                        *(scratch, derivations, folder, self._sample),
                    )
                    FlowView(*context).check(report)
            finally:
                scratch.close()
        return self._save(report, began_ms, started_s)

    def flow(self, flow: Flow, through: tuple[int, int] | None = None) -> Report:
        """Verify a flow's topic up to ``through``, a generation and a batch. None means the newest batch."""
        from headrace.ops.verify.flow_topic import FlowTopic
        from headrace.ops.verify.stable_topic import StableTopic

        began_ms, started_s = time.time_ns() // 1_000_000, time.monotonic()
        with self._folder() as folder:
            topic = FlowTopic(self._cluster, flow, self._require_derivations(flow), folder, self._sample)
            report = topic.check(self._app, through)
            StableTopic(self._cluster, flow, folder, self._sample, self._say).check(report)
        return self._save(report, began_ms, started_s)

    def _require_derivations(self, flow: Flow) -> Derivations:
        if self._derivations is None:
            raise CannotVerify(
                f"Spark is needed to derive flow {flow.name} again, but it is not available",
                hint='pip install "headrace[spark]"; headrace doctor shows what else is missing',
            )
        return self._derivations

    def _save(self, report: Report, began_ms: int, started_s: float) -> Report:
        report.began_ms = began_ms
        report.seconds = round(time.monotonic() - started_s, 3)
        report.judge()
        save_report(self._cluster, report)
        return report

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Create a temporary folder in the data directory, where space for a copy of a view is likely."""
        make_private_dir(self._settings.data)
        with tempfile.TemporaryDirectory(prefix=".verify-", dir=self._settings.data) as name:
            yield Path(name)
