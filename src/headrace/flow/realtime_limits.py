"""Whether Spark can run a function in real time, and whether its rows can be told apart afterwards."""

from __future__ import annotations

import inspect

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.flow.carrying import SOURCE, carried
from headrace.flow.mistakes import FlowMistake
from headrace.model.flow import Flow

__all__ = ["expect_realtime"]

_BATCH = 'leave latency="realtime" away'


def expect_realtime(
    flow: Flow, rows: DataFrame, output: DataFrame, *, stateful: bool, runs_python: bool
) -> None:
    """``output`` is what the function makes of ``rows``, which have no sources yet."""
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
    if SOURCE in output.columns:
        raise _refused(flow, f"it returns a column {SOURCE}, which is Headrace's own", "rename it")
    carried(flow, rows.withColumn(SOURCE, F.lit(None).cast("string")), flow.function)


def _refused(flow: Flow, why: str, hint: str) -> FlowMistake:
    return FlowMistake(f"flow {flow.name} cannot run in real time: {why}", place=flow.place, hint=hint)
