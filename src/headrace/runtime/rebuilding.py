"""A new generation of flows: their output derived again from the log, into topics of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress_log import current
from headrace.errors import HeadraceError
from headrace.model.flow import Flow
from headrace.model.graph import check, downstream, order
from headrace.model.progress import Generation
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FlowUnknown", "rebuild", "to_rebuild"]


class FlowUnknown(HeadraceError):
    code = "HR-FLOW-UNKNOWN"


def to_rebuild(app: App, names: Sequence[str]) -> list[Flow]:
    """The flows, and all that read what they write, in the order in which they build on each other."""
    known = {flow.name: flow for flow in app.flows}
    for name in names:
        if name not in known:
            raise FlowUnknown(
                f"app {app.name} has no flow {name!r}", hint=f"it has {', '.join(known) or 'none'}"
            )
    chosen = set(names)
    chosen |= {flow.name for name in names for flow in downstream(app, known[name])}
    return [flow for flow in order(app) if flow.name in chosen]


def rebuild(
    app: App,
    settings: Settings,
    cluster: Cluster,
    names: Sequence[str],
    *,
    tell: Callable[[str], None],
    spark: SparkSession | None = None,
) -> list[Generation]:
    """Begins the generations; whoever runs the flows next derives them. Without a ``spark`` one is started for it."""
    from headrace.flow.compiling import compile_app
    from headrace.flow.opening import expect_same_app, open_flow
    from headrace.flow.options import FlowOptions
    from headrace.flow.ownership import Ownership
    from headrace.flow.runner import transactional_id
    from headrace.flow.session import start, stop
    from headrace.flow.writer import Writer

    check(app)
    flows = to_rebuild(app, names)
    used = spark or start(settings, app.name, say=tell)
    try:
        compiled = {one.flow.name: one for one in compile_app(used, app)[0]}
        options = FlowOptions.of(settings)
        begun = []
        for flow in flows:
            expect_same_app(app, flow, current(cluster, flow.progress_topic))
            writer = Writer(cluster, flow.name, transactional_id(flow), options.transaction_timeout_ms)
            try:
                ownership = Ownership(cluster, flow, options.transaction_timeout_ms)
                opened = open_flow(
                    used, cluster, app, compiled[flow.name], writer, options, ownership, rebuild="asked for"
                )
            finally:
                writer.close()
            begun.append(opened.generation)
        return begun
    finally:
        if spark is None:
            stop(used)
