"""Checks that Spark can run a function as a stream, or in real time."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.flow.compile.mistakes import FlowMistake, first_line
from headrace.flow.compile.plan import analyzed, children, class_name, expr_id, leaf_columns, nodes
from headrace.flow.compile.state_bounds import expect_bounded, keeps_state
from headrace.model.declarations import Flow

__all__ = ["expect_all_streams", "expect_realtime", "expect_streamable"]

_NEEDS_END_OF_INPUT = re.compile(r"(Sort|GlobalLimit|LocalLimit|Offset|Tail|Window\w*)$")
_BATCH_BY_BATCH = re.compile(
    r"(FlatMapGroupsIn(?:Pandas|Arrow)|FlatMapCoGroups\w*|CoGroup|MapGroups|Distinct|Except|Intersect)$"
)
"""Steps (operations of the plan) that do not work on a stream. Spark would run a group or cogroup function on each
batch separately. Spark would also rewrite Distinct, Except and Intersect to an aggregation over all columns, whose
state the checks in this module would not see.
"""

_ROW_BY_ROW = frozenset({"Project", "Filter", "SubqueryAlias", "View", "ResolvedHint"})
_MULTIPLE_ROW_REASONS = {
    "Generate": "returns several rows for one record (explode)",
    "Expand": "returns several rows for one record",
    "Union": "combines rows of several branches",
    "Join": "joins",
}
_BATCH_HINT = 'remove latency="realtime"'


def expect_all_streams(flow: Flow, stream_output: DataFrame, inputs: list[DataFrame]) -> None:
    """Raise if the function does not use a stream: Spark would not read it, so the flow would have no position."""
    read = set(map(expr_id, leaf_columns(analyzed(stream_output))))
    for topic, frame in zip(flow.reads, inputs, strict=True):
        plan: Any = frame._jdf.queryExecution().analyzed()
        if topic.kind != "table" and read.isdisjoint(map(expr_id, leaf_columns(plan))):
            raise FlowMistake(
                f"flow {flow.name} reads topic {topic.name}, but its function does not use it",
                location=flow.location,
                hint="remove the topic from reads=[...] and its parameter from the function",
            )


def expect_streamable(flow: Flow, stream_output: DataFrame, inputs: Sequence[DataFrame]) -> tuple[bool, str]:
    """Return whether the flow has state, and Spark's output mode. Raises if Spark cannot run the flow as a stream."""
    plan = analyzed(stream_output)
    streaming = _streaming_nodes(plan)
    for node in streaming:
        if match := _NEEDS_END_OF_INPUT.match(class_name(node)):
            raise FlowMistake(
                f"flow {flow.name} has a step ({match[1]}) that needs the end of its input, but a stream has no end",
                location=flow.location,
                hint="sort and limit the rows when you query the view",
            )
        if match := _BATCH_BY_BATCH.match(class_name(node)):
            raise FlowMistake(
                f"flow {flow.name} has a step ({match[1]}) that Spark would compute for each batch separately, without"
                " earlier rows, or replace by an aggregation",
                location=flow.location,
                hint="use groupBy(...).agg(...), dropDuplicates(...), or a join",
            )
    stateful = any(keeps_state(node) for node in streaming)
    if flow.tables and (stateful or len(flow.streams) > 1):
        raise FlowMistake(
            f"flow {flow.name} reads a table and "
            + ("has state" if stateful else f"{len(flow.streams)} streams"),
            location=flow.location,
            hint="split the flow in two: the first joins a stream with the table, the second reads the result",
        )
    mode = "update" if stateful and _aggregates(stream_output) else "append"
    jvm: Any = stream_output.sparkSession._jvm
    try:
        checker: Any = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        output_mode: Any = jvm.org.apache.spark.sql.streaming.OutputMode
        checker.checkForStreaming(plan, output_mode.Update() if mode == "update" else output_mode.Append())
    except Exception as error:
        reason = re.search(r"AnalysisException: (.*)", str(error))
        text = reason[1] if reason else first_line(str(error))
        raise FlowMistake(
            f"flow {flow.name} cannot run as a stream: {text.partition(';')[0]}", location=flow.location
        ) from error
    if stateful:
        expect_bounded(flow, stream_output, inputs)
    return stateful, mode


def _streaming_nodes(plan: Any) -> list[Any]:
    """Return the nodes of the plan that process a stream."""
    return [node for node in nodes(plan) if node.isStreaming()]


def _aggregates(stream_output: DataFrame) -> bool:
    return any(class_name(node) == "Aggregate" for node in _streaming_nodes(analyzed(stream_output)))


def expect_realtime(flow: Flow, output: DataFrame, *, stateful: bool, runs_python: bool) -> None:
    """``output`` is the result of the function for an input that is not a stream."""
    if "realTime" not in inspect.signature(DataStreamWriter.trigger).parameters:
        raise _refused(
            flow,
            f"Spark {output.sparkSession.version} has no real-time mode",
            f"use Spark 4.2 or newer, or {_BATCH_HINT}",
        )
    if stateful:
        raise _refused(flow, "it has state", f"aggregate in another flow, or {_BATCH_HINT}")
    if runs_python:
        raise _refused(
            flow,
            "it uses a Python function (UDF) to compute rows",
            f"use Spark's own functions, or {_BATCH_HINT}",
        )
    _expect_row_by_row(flow, output)


def _expect_row_by_row(flow: Flow, output: DataFrame) -> None:
    """Raise if a record can produce several rows: the record's offset must identify the row."""
    execution: Any = output._jdf.queryExecution()
    plan = execution.analyzed()
    jvm: Any = output.sparkSession._jvm
    if plan.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION()):
        raise _produces_several_rows(flow, "runs a subquery")
    for node in nodes(plan):
        name = str(node.nodeName())
        if children(node) and name not in _ROW_BY_ROW:
            raise _produces_several_rows(
                flow,
                _MULTIPLE_ROW_REASONS.get(name, f"has a step that does not process rows one by one ({name})"),
            )


def _produces_several_rows(flow: Flow, reason: str) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} cannot run in real time: it {reason}",
        location=flow.location,
        detail="each input record must produce at most one row; use select, withColumn, where and similar steps",
        hint=f"{_BATCH_HINT}, or move the step to another flow",
    )


def _refused(flow: Flow, reason: str, hint: str) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} cannot run in real time: {reason}", location=flow.location, hint=hint
    )
