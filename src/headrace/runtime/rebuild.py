"""Starts new generations of flows. A new generation derives the flow's output again from the log, into a new topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import generations_of
from headrace.clock import SystemClock
from headrace.errors import HeadraceError
from headrace.model.declarations import Flow
from headrace.model.graph import check, downstream, order
from headrace.model.progress import Generation
from headrace.ops.schemas.start import expect_history_fits
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FlowUnknown", "flow_named", "flows_to_rebuild", "rebuild"]


class FlowUnknown(HeadraceError):
    code = "HR-FLOW-UNKNOWN"


def flow_named(app: App, name: str) -> Flow:
    found = next((flow for flow in app.flows if flow.name == name), None)
    if found is None:
        raise FlowUnknown(
            f"app {app.name} has no flow {name!r}",
            hint=f"its flows are: {', '.join(flow.name for flow in app.flows) or 'none'}",
        )
    return found


def flows_to_rebuild(app: App, names: Sequence[str]) -> list[Flow]:
    """Return the named flows and all flows downstream of them, in dependency order."""
    named = [flow_named(app, name) for name in names]
    selected = {flow.name for start in named for flow in (start, *downstream(app, start))}
    return [flow for flow in order(app) if flow.name in selected]


def rebuild(
    app: App,
    settings: Settings,
    cluster: Cluster,
    names: Sequence[str],
    *,
    note: Callable[[str], None],
    spark: SparkSession | None = None,
) -> list[Generation]:
    """Record the new generations in the log. Processes that run the flows derive them, beside the serving ones.

    Raises ``AppMistakes``, before anything is written, if records of the log do not fit the schemas of their topics.
    Without ``spark``, start a Spark session and stop it afterwards.
    """
    from headrace.flow.compile.compiler import compile_app
    from headrace.flow.context import FlowContext, FlowOptions
    from headrace.flow.flow_state import open_flow
    from headrace.flow.generation_choice import begin_generation, first_entry
    from headrace.flow.ownership import Ownership, expect_owner, open_writer
    from headrace.flow.spark.session import start, stop

    check(app)
    flows = flows_to_rebuild(app, names)
    history = expect_history_fits(cluster, app, SystemClock().now_ms())
    session = spark or start(settings, app.name, say=note)
    try:
        compiled = {flow.flow.name: flow for flow in compile_app(session, app)[0]}
        options = FlowOptions.of(settings)
        generations = []
        history.record(cluster)
        for flow in flows:
            context = FlowContext(session, cluster, app, compiled[flow.name], {}, options)
            has_begun = generations_of(cluster, flow) is not None
            entry = begin_generation(context, "requested") if has_begun else first_entry(context)
            expect_owner(cluster, app, flow)
            writer = open_writer(cluster, flow, entry, options.transaction_timeout_ms)
            try:
                ownership = Ownership(cluster, flow, options.transaction_timeout_ms)
                ownership.progress_topic = entry.progress
                opened = open_flow(context, writer, ownership, entry)
            finally:
                writer.close()
            generations.append(opened.generation)
        return generations
    finally:
        if spark is None:
            stop(session)
