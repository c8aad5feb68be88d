"""Whether Spark can run a function in real time, and whether its rows can be told apart afterwards."""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.flow.mistakes import FlowMistake
from headrace.flow.plan_tree import children, nodes
from headrace.model.flow import Flow

__all__ = ["expect_realtime"]

_ROW_BY_ROW = frozenset({"Project", "Filter", "SubqueryAlias", "View", "ResolvedHint"})
_SEVERAL = {
    "Generate": "makes several rows of one (explode)",
    "Expand": "makes several rows of one",
    "Union": "puts rows together that come more than one way",
    "Join": "joins",
}
_BATCH = 'leave latency="realtime" away'


def expect_realtime(flow: Flow, output: DataFrame, *, stateful: bool, runs_python: bool) -> None:
    """``output`` is what the function makes of an input that is not a stream."""
    if "realTime" not in inspect.signature(DataStreamWriter.trigger).parameters:
        raise _refused(
            flow,
            f"Spark {output.sparkSession.version} has no such mode",
            f"use Spark 4.2 or newer, or {_BATCH}",
        )
    if stateful:
        raise _refused(flow, "it keeps state", f"let another flow add up or remember, or {_BATCH}")
    if runs_python:
        raise _refused(
            flow, "it calls Python for its rows", f"write it with Spark's own functions, or {_BATCH}"
        )
    _expect_row_by_row(flow, output)


def _expect_row_by_row(flow: Flow, output: DataFrame) -> None:
    """Each record must give one row at most, so that its place in the input names the row."""
    execution: Any = output._jdf.queryExecution()
    plan = execution.analyzed()
    jvm: Any = output.sparkSession._jvm
    if plan.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION()):
        raise _several(flow, "asks a query of its own for each row")
    for node in nodes(plan):
        name = str(node.nodeName())
        if children(node) and name not in _ROW_BY_ROW:
            raise _several(flow, _SEVERAL.get(name, f"has a step that does not go row by row ({name})"))


def _several(flow: Flow, why: str) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} cannot run in real time: it {why}",
        place=flow.place,
        detail="each record of its input must give one row at most, by select, withColumn, where and the like",
        hint='leave latency="realtime" away, or let another flow do the rest',
    )


def _refused(flow: Flow, why: str, hint: str) -> FlowMistake:
    return FlowMistake(f"flow {flow.name} cannot run in real time: {why}", place=flow.place, hint=hint)
