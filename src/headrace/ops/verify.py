"""``verify``: what is served, held against what follows from the log.

A view of a flow's topic is derived again with the flow's own function, through the very batch that the view is at, and
compared row by row. None of the follower's code takes part. A view of a topic that no flow writes is the fold of that
topic. A flow without a view can be verified by its topic: that it has every derived row, and each once.

What a green result proves is a step: from the flow's input topics, as they are in the log, to the rows that are
served. ``verify_all`` takes all steps of an app, the flows' topics as well, so that together they lead from what
was written from outside to every view.
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
from headrace.model.flow import Flow
from headrace.model.graph import order
from headrace.model.view import View
from headrace.ops.errors import CannotVerify
from headrace.ops.report import Report
from headrace.ops.results import keep
from headrace.ops.served import read_served
from headrace.private import make_private_dir
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.flow.compiled import Compiled
    from headrace.model.schema import Schema
    from headrace.ops.deriving import Deriving

__all__ = ["Count", "Say", "Verifier", "verify_view"]

Say = Callable[[str], None]
Count = Callable[[int, int], None]
"""Takes how many offsets of a topic were passed, and of how many."""


def _quiet(line: str) -> None:
    """For whoever does not wait."""


def _uncounted(done: int, of: int) -> None:
    """Likewise."""


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
    say: Say = _quiet,
) -> Report:
    """``spark`` is needed only for views of what flows write. The result is also kept in the log."""
    with Verifier(spark, cluster, app, settings, compiled, schemas, sample=sample, say=say) as verifier:
        return verifier.view(view)


class Verifier:
    """For several at once: what was derived for a view serves for its flow's topic too."""

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
        say: Say = _quiet,
        count: Count = _uncounted,
    ) -> None:
        self._cluster = cluster
        self._app = app
        self._settings = settings
        self._sample = sample
        self._say = say
        self._count = count
        self._deriving: Deriving | None = None
        if spark is not None:
            from headrace.ops.deriving import Deriving

            self._deriving = Deriving(spark, cluster, settings, compiled, schemas, say)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._deriving is not None:
            self._deriving.close()

    def all(self) -> Iterator[Report | CannotVerify]:
        """Every view, and the topic of every flow, in the order in which they follow from each other."""
        for view in self._app.views:
            if self._app.writer_of(view.topic) is None:
                yield self.tried(lambda view=view: self.view(view))  # type: ignore[misc]
        for flow in order(self._app):
            through = None
            for view in self._app.views:
                if self._app.writer_of(view.topic) is flow:
                    report = self.tried(lambda view=view: self.view(view))  # type: ignore[misc]
                    through = (report.generation, report.batch) if isinstance(report, Report) else None
                    yield report
            yield self.tried(lambda flow=flow, through=through: self.flow(flow, through))  # type: ignore[misc]

    @staticmethod
    def tried(act: Callable[[], Report]) -> Report | CannotVerify:
        """What keeps one from being verified does not keep the others."""
        try:
            return act()
        except CannotVerify as error:
            return error

    def view(self, view: View) -> Report:
        began_ms, began = time.time_ns() // 1_000_000, time.monotonic()
        self._say(f"view {view.name}: reading what is served")
        with self._folder() as folder:
            served, scratch = read_served(folder, view, self._app.name, self._settings.data)
            try:
                report = Report(app=self._app.name, what="view", name=view.name, topic=served.topic)
                report.generation, report.batch = served.generation, served.batch
                report.offsets = {str(one): at for one, at in served.offsets.items()}
                flow = self._app.writer_of(view.topic)
                if flow is None:
                    from headrace.ops.topic_view import check_topic_view

                    self._say(f"view {view.name}: folding topic {served.topic}")
                    check_topic_view(self._cluster, view, served, scratch, report, self._sample, self._count)
                else:
                    from headrace.ops.flow_view import FlowView

                    deriving = self._needed(flow)
                    where = (self._cluster, view, flow, served, scratch, deriving, folder, self._sample)
                    FlowView(*where).check(report)
            finally:
                scratch.close()
        return self._finished(report, began_ms, began)

    def flow(self, flow: Flow, through: tuple[int, int] | None = None) -> Report:
        """``through`` is a generation and a batch; otherwise all that there is."""
        from headrace.ops.flow_topic import FlowTopic

        began_ms, began = time.time_ns() // 1_000_000, time.monotonic()
        with self._folder() as folder:
            topic = FlowTopic(self._cluster, flow, self._needed(flow), folder, self._sample)
            report = topic.check(self._app, through)
        return self._finished(report, began_ms, began)

    def _needed(self, flow: Flow) -> Deriving:
        if self._deriving is None:
            raise CannotVerify(
                f"flow {flow.name} is derived again by Spark, and there is none",
                hint='pip install "headrace[spark]"; headrace doctor says what else is missing',
            )
        return self._deriving

    def _finished(self, report: Report, began_ms: int, began: float) -> Report:
        report.began_ms = began_ms
        report.seconds = round(time.monotonic() - began, 3)
        report.judge()
        keep(self._cluster, report)
        return report

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Beside the views, where there is room for as much again."""
        make_private_dir(self._settings.data)
        with tempfile.TemporaryDirectory(prefix=".verify-", dir=self._settings.data) as name:
            yield Path(name)
