"""Compares what readers of a flow's topic see with the rows of a generation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType

from headrace.client.cluster import Cluster
from headrace.client.progress import current
from headrace.flow.switch.difference import Difference
from headrace.flow.switch.report import SwitchReport, shares_of
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations

__all__ = ["Comparison"]


class Comparison:
    """Compares the stable topic with the topic of a generation. Use it as a context manager.

    The first report reads both topics. Later ones read and compare only what is new.
    """

    def __init__(self, cluster: Cluster, flow: Flow, entry: Entry) -> None:
        self._cluster = cluster
        self._flow = flow
        self._entry = entry
        progress = current(cluster, entry.progress)
        updates = progress is not None and bool(progress.generation.updates)
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-switch-")
        self.difference = Difference(
            cluster,
            flow.writes.name,
            entry.topic,
            only_last=updates or flow.writes.kind == "table",
            path=Path(self._folder.name) / "difference.db",
        )

    def __enter__(self) -> Comparison:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.difference.close()
        self._folder.cleanup()

    def report(self, generations: FlowGenerations) -> SwitchReport:
        """Return the report without samples, which take many requests."""
        counts = self.difference.advance()
        before = generations.published_number
        entry = generations.entry(before)
        old = current(self._cluster, entry.progress) if entry is not None else None
        new = current(self._cluster, self._entry.progress)
        return SwitchReport(
            self._flow.name,
            before,
            self._entry.number,
            counts,
            shares_of(old.last if old else None),
            shares_of(new.last if new else None),
        )

    def with_samples(self, report: SwitchReport) -> SwitchReport:
        """Add a few rows that differ to the last report."""
        return report.with_samples(self.difference.samples())
