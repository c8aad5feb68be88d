"""Whether a flow's function gives the same rows for the same input, whenever and wherever it runs.

A batch that runs again, a rebuild and ``verify`` rely on it. Clocks, randomness and what depends on the session or on
how Spark has split the rows are found in the plan's expressions, however deep.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame

from headrace.flow.mistakes import FlowMistake, first_line, line_naming_in, line_of
from headrace.flow.plan_digest import PlanDigest, Trail, plan_digest
from headrace.flow.plan_tree import analyzed, children, class_name, each, nodes
from headrace.model.flow import Flow
from headrace.model.place import Place

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
_READ_AS_TIMES = ("Cast", "ParseToDate", "ParseToTimestamp")
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})


def expect_deterministic(flow: Flow, plan: PlanDigest, output: DataFrame) -> None:
    """``plan`` is the digest of ``output``."""
    if plan.runs_python and not flow.deterministic:
        raise FlowMistake(
            f"flow {flow.name} calls Python for its rows, and does not say that the same rows give the same results",
            place=flow.place,
            hint="@app.flow(..., deterministic=True) says so; a batch that runs again, and verify, rely on it",
        )
    if "Sample" in plan.steps:
        raise _not_deterministic(flow, "a sample of the rows", line_naming_in(flow, "sample", "randomSplit"))
    for trail in _random(plan):
        raise _not_deterministic(flow, first_line(trail[0].toString()), _line(flow, trail))
    for trail in _of(plan, _CLOCKS):
        raise _reads_clock(flow, first_line(trail[0].sql()), _line(flow, trail))
    if _replaces_now(output):
        times = (_line(flow, trail) for trail in _of(plan, _READ_AS_TIMES) if _is_constant_time(trail[0]))
        raise _reads_clock(flow, "a text such as 'now' that is read as a time", next(times, flow.place))
    for trail in _of(plan, _SESSION):
        raise FlowMistake(
            f"flow {flow.name} depends on the Spark session ({first_line(trail[0].sql())})",
            place=_line(flow, trail),
            hint="another session would give other rows: write the value itself",
        )


def expect_same_plan(flow: Flow, first: DataFrame, second: DataFrame, inputs: list[DataFrame]) -> None:
    """Both are what the function returns for ``inputs``. They differ where the clock or a random number is read while
    the function runs, so that the plan holds nothing but its result.
    """
    # Spark knows quickly that plans are the same. It takes more for different than differs: every RDD, for example.
    if first.sameSemantics(second):
        return
    if plan_digest(first, inputs).text != plan_digest(second, inputs).text:
        raise FlowMistake(
            f"flow {flow.name} returns another plan each time it is called",
            place=flow.place,
            detail="it reads the clock or a random number while it is called, as datetime.now() and TIMESTAMP 'now' do",
            hint="the result would be another one after every start: use the event's own time, or a constant",
        )


def expect_no_watermark(flow: Flow, live: DataFrame, inputs: list[DataFrame]) -> None:
    """``live`` is what the function makes of ``inputs``, which are streams with watermarks of ours."""
    ours = {mark for frame in inputs for mark in _watermarks(frame)}
    if not ours.issuperset(_watermarks(live)):
        raise FlowMistake(
            f"flow {flow.name} sets a watermark of its own (withWatermark)",
            place=line_naming_in(flow, "withWatermark"),
            detail="Spark drops the rows behind it, and nothing counts them as late",
            hint="declare it where the topic is: app.topic(..., time=..., late=...)",
        )


def expect_no_collation(flow: Flow, live: DataFrame) -> None:
    """Under some collations texts are equal that differ. Which of them a group or a maximum shows would depend on the
    order of the rows, and Spark cannot keep state by such a key.
    """
    jvm: Any = live.sparkSession._jvm
    rows = jvm.org.apache.spark.sql.catalyst.util.UnsafeRowUtils
    for node in nodes(analyzed(live), subqueries=True):
        if not rows.isBinaryStable(node.schema()):
            raise FlowMistake(
                f"flow {flow.name} has a column with a collation under which different texts are equal",
                place=line_naming_in(flow, "collate", "cast"),
                detail="which of the equal texts a group or a maximum shows would depend on the order of the rows",
                hint="use F.lower(...) or F.trim(...) instead of the collation",
            )


def _not_deterministic(flow: Flow, what: str, place: Place | None) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} is not deterministic: {what}",
        place=place,
        hint="rand(), uuid() and the like give other rows when a batch runs again: use the event instead",
    )


def _random(plan: PlanDigest) -> Iterator[Trail]:
    """The innermost expressions that Spark itself takes for not deterministic, and one that it wrongly does not."""
    yield from (trail for trail in plan.expressions.get("AesEncrypt", ()) if _has_random_vector(trail[0]))
    if all(node.deterministic() for alike in plan.steps.values() for node in alike):
        return
    for trail in chain.from_iterable(plan.expressions.values()):
        if not trail[0].deterministic() and all(child.deterministic() for child in children(trail[0])):
            yield trail


def _has_random_vector(encrypt: Any) -> bool:
    """Unless the user hands over an initialization vector, or the mode has none."""
    _, _, mode, _, vector, _ = children(encrypt)
    return str(vector.sql()) in ("CAST('' AS BINARY)", "X''") and str(mode.sql()).upper() != "'ECB'"


def _reads_clock(flow: Flow, what: str, place: Place | None) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} reads the clock ({what})",
        place=place,
        hint="a batch that runs again would see another time: use the event's own time",
    )


def _is_constant_time(expression: Any) -> bool:
    return str(expression.dataType().typeName()) in _TIMES and bool(children(expression)[0].foldable())


def _replaces_now(output: DataFrame) -> bool:
    """Whether Spark would put the time at which it plans the query in the place of a text such as 'now'."""
    jvm: Any = output.sparkSession._jvm
    optimizer = jvm.org.apache.spark.sql.catalyst.optimizer
    plan = analyzed(output)
    for part in (plan, *each(plan.subqueriesAll())):
        replaced = optimizer.ReplaceExpressions.apply(part)
        if not optimizer.SpecialDatetimeValues.apply(replaced).fastEquals(replaced):
            return True
    return False


def _of(plan: PlanDigest, kinds: tuple[str, ...]) -> Iterator[Trail]:
    return chain.from_iterable(plan.expressions.get(kind, ()) for kind in kinds)


def _line(flow: Flow, trail: Trail) -> Place | None:
    return line_of(flow, *trail, name=str(trail[0].prettyName()))


def _watermarks(frame: DataFrame) -> set[str]:
    execution: Any = frame._jdf.queryExecution()
    found = nodes(execution.analyzed(), subqueries=True)
    return {str(node.nodeId()) for node in found if class_name(node) == "EventTimeWatermark"}
