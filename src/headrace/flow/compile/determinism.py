"""Checks that a flow's function returns the same rows for the same input, at any time and on any machine.

Repeated batches, rebuilds and ``verify`` rely on this. The checks search the plan, at any depth, for expressions that
read the clock, are random, or depend on the session or on how Spark split the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame

from headrace.flow.compile.mistakes import FlowMistake, first_line, line_of, line_using
from headrace.flow.compile.plan import analyzed, children, class_name, each, nodes
from headrace.flow.compile.plan_digest import PlanDigest, Trail, plan_digest
from headrace.model.declarations import Flow
from headrace.model.errors import SourceLocation

__all__ = ["expect_deterministic", "expect_no_collation", "expect_no_watermark", "expect_same_plan"]

_CLOCKS = ("CurrentBatchTimestamp", "CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp", "Now")
_SESSION = (
    "CurrentCatalog",
    "CurrentDatabase",
    "CurrentPath",
    "CurrentTimeZone",
    "CurrentUser",
    "SparkVersion",
)
_TIME_CASTS = ("Cast", "ParseToDate", "ParseToTimestamp")
_TIME_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})


def expect_deterministic(flow: Flow, plan: PlanDigest, output: DataFrame) -> None:
    """``plan`` is the digest of ``output``."""
    if plan.runs_python and not flow.deterministic:
        raise FlowMistake(
            f"flow {flow.name} uses a Python function (UDF) to compute rows, but is not declared deterministic",
            location=flow.location,
            hint="if equal rows produce equal results, declare @app.flow(..., deterministic=True); repeated batches and"
            " verify rely on it",
        )
    if "Sample" in plan.steps:
        raise _not_deterministic(flow, "a sample of the rows", line_using(flow, "sample", "randomSplit"))
    for trail in _random(plan):
        raise _not_deterministic(flow, first_line(trail[0].toString()), _line(flow, trail))
    for trail in _trails(plan, _CLOCKS):
        raise _reads_clock(flow, first_line(trail[0].sql()), _line(flow, trail))
    if _replaces_now(output):
        locations = (
            _line(flow, trail) for trail in _trails(plan, _TIME_CASTS) if _is_constant_time(trail[0])
        )
        raise _reads_clock(
            flow,
            "a string such as 'now', which Spark casts to the current time",
            next(locations, flow.location),
        )
    for trail in _trails(plan, _SESSION):
        raise FlowMistake(
            f"flow {flow.name} depends on the Spark session ({first_line(trail[0].sql())})",
            location=_line(flow, trail),
            hint="another session would produce other rows: use a constant instead",
        )


def expect_same_plan(flow: Flow, first: DataFrame, second: DataFrame, inputs: list[DataFrame]) -> None:
    """Raise if the two results of the function for ``inputs`` differ. They differ if the function reads the clock or a
    random number when it is called, because the plan then contains that value as a constant.
    """
    # sameSemantics is fast, but reports some equal plans as different, for example all plans with an RDD.
    if first.sameSemantics(second):
        return
    if plan_digest(first, inputs).text != plan_digest(second, inputs).text:
        raise FlowMistake(
            f"flow {flow.name} returns a different plan each time it is called",
            location=flow.location,
            detail="it reads the clock or a random number when it is called, for example datetime.now() or TIMESTAMP"
            " 'now'",
            hint="the result would differ after every start: use the event time or a constant",
        )


def expect_no_watermark(flow: Flow, stream_output: DataFrame, inputs: list[DataFrame]) -> None:
    """Raise if the function sets a watermark. ``stream_output`` is its result for ``inputs``, streams with the declared
    watermarks.
    """
    declared = {mark for frame in inputs for mark in _watermarks(frame)}
    if not declared.issuperset(_watermarks(stream_output)):
        raise FlowMistake(
            f"flow {flow.name} sets a watermark of its own (withWatermark)",
            location=line_using(flow, "withWatermark"),
            detail="Spark would drop rows before that watermark, without counting them as late",
            hint="declare it in the topic: app.topic(..., time=..., late=...)",
        )


def expect_no_collation(flow: Flow, stream_output: DataFrame) -> None:
    """Raise if a column has a collation in which different texts are equal. With such a collation, the order of the
    rows would decide which of the equal texts a group or a maximum contains. Spark also cannot use such a key for
    state.
    """
    jvm: Any = stream_output.sparkSession._jvm
    rows = jvm.org.apache.spark.sql.catalyst.util.UnsafeRowUtils
    for node in nodes(analyzed(stream_output), subqueries=True):
        if not rows.isBinaryStable(node.schema()):
            raise FlowMistake(
                f"flow {flow.name} has a column with a collation in which different texts are equal",
                location=line_using(flow, "collate", "cast"),
                detail="which of the equal texts a group or a maximum contains would depend on the order of the rows",
                hint="use F.lower(...) or F.trim(...) instead of the collation",
            )


def _not_deterministic(flow: Flow, description: str, location: SourceLocation | None) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} is not deterministic: {description}",
        location=location,
        hint="rand(), uuid() and similar functions return other rows when a batch is repeated: use fields of the event",
    )


def _random(plan: PlanDigest) -> Iterator[Trail]:
    """Yield the innermost expressions that Spark reports as not deterministic, and AesEncrypt with a random vector,
    which Spark wrongly reports as deterministic.
    """
    yield from (trail for trail in plan.expressions.get("AesEncrypt", ()) if _has_random_vector(trail[0]))
    if all(node.deterministic() for same_class in plan.steps.values() for node in same_class):
        return
    for trail in chain.from_iterable(plan.expressions.values()):
        if not trail[0].deterministic() and all(child.deterministic() for child in children(trail[0])):
            yield trail


def _has_random_vector(encrypt: Any) -> bool:
    """Return True unless the user passes an initialization vector or the mode has none."""
    _, _, mode, _, vector, _ = children(encrypt)
    return str(vector.sql()) in ("CAST('' AS BINARY)", "X''") and str(mode.sql()).upper() != "'ECB'"


def _reads_clock(flow: Flow, description: str, location: SourceLocation | None) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} reads the clock ({description})",
        location=location,
        hint="a repeated batch would read another time: use the event time",
    )


def _is_constant_time(expression: Any) -> bool:
    return str(expression.dataType().typeName()) in _TIME_TYPES and bool(children(expression)[0].foldable())


def _replaces_now(output: DataFrame) -> bool:
    """Whether Spark would replace a text such as 'now' with the time of planning."""
    jvm: Any = output.sparkSession._jvm
    optimizer = jvm.org.apache.spark.sql.catalyst.optimizer
    plan = analyzed(output)
    for part in (plan, *each(plan.subqueriesAll())):
        replaced = optimizer.ReplaceExpressions.apply(part)
        if not optimizer.SpecialDatetimeValues.apply(replaced).fastEquals(replaced):
            return True
    return False


def _trails(plan: PlanDigest, kinds: tuple[str, ...]) -> Iterator[Trail]:
    return chain.from_iterable(plan.expressions.get(kind, ()) for kind in kinds)


def _line(flow: Flow, trail: Trail) -> SourceLocation | None:
    return line_of(flow, *trail, name=str(trail[0].prettyName()))


def _watermarks(frame: DataFrame) -> set[str]:
    execution: Any = frame._jdf.queryExecution()
    plan_nodes = nodes(execution.analyzed(), subqueries=True)
    return {str(node.nodeId()) for node in plan_nodes if class_name(node) == "EventTimeWatermark"}
