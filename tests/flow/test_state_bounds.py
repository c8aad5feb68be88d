"""State that would grow forever is refused: for each side of a join, exactly if Spark's plan never drops that side's
rows.
"""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.app import App
from headrace.flow.compile.compiler import compile_app
from headrace.flow.compile.plan import class_name, nodes
from headrace.flow.compile.state_bounds import unbounded_sides
from headrace.model.errors import AppMistakes

HOUR = "INTERVAL 1 HOUR"
Function = Callable[[DataFrame, DataFrame], DataFrame]


@dataclass(frozen=True)
class Click:
    click: str
    page: str
    seen: datetime
    at: datetime


def compiled(spark: SparkSession, function: Function, *, unbounded: bool = False, timed: bool = True) -> None:
    app = App("bounds")
    late = timedelta(seconds=10)
    clicks = app.topic("clicks", Click, key="click", time="at", late=late)
    others = app.topic("others", Click, key="click", **({"time": "at", "late": late} if timed else {}))
    out = app.topic("out", key="click")
    app.flow(reads=[clicks, others], writes=out, name="pair", unbounded=unbounded)(function)
    compile_app(spark, app)


def refusal(spark: SparkSession, function: Function, **options: Any) -> str:
    with pytest.raises(AppMistakes) as found:
        compiled(spark, function, **options)
    [mistake] = found.value.mistakes
    return str(mistake)


def joined(condition: str) -> Function:
    def pair(clicks: DataFrame, others: DataFrame) -> DataFrame:
        both = clicks.alias("l").join(others.alias("r"), F.expr(f"l.page = r.page AND {condition}"))
        return both.select("l.click")

    return pair


@pytest.mark.parametrize(
    ("condition", "unbounded"),
    [
        ("true", ("left", "right")),
        (f"l.at >= r.at - {HOUR}", ("right",)),
        (f"l.at <= r.at + {HOUR}", ("left",)),
        # The condition names the column of the watermark, but does not bound how old a row may be.
        ("l.at IS NOT NULL AND r.at IS NOT NULL", ("left", "right")),
        (f"(l.at >= r.at - {HOUR} OR l.click = 'x') AND l.at <= r.at", ("left",)),
        ("l.at >= r.at - make_interval(0, 1) AND l.at <= r.at", ("left",)),
        (f"l.at BETWEEN r.at - {HOUR} AND r.at + {HOUR}", ()),
        (f"NOT (l.at < r.at - {HOUR} OR l.at > r.at + {HOUR})", ()),
        ("l.at = r.at", ()),
    ],
)
def test_a_side_is_bounded_by_the_event_time_of_the_other(
    sides: tuple[DataFrame, DataFrame], condition: str, unbounded: tuple[str, ...]
) -> None:
    left, right = sides
    on, how = F.expr("l.page = r.page"), F.expr(condition)
    for live in (
        left.join(right, on & how),
        left.join(right, on).where(how),
        left.join(right, on & how, "left_outer"),
    ):
        assert unbounded_sides(live) == [unbounded]


def test_windows_that_must_be_equal_bound_both_sides(sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = (side.select("page", F.window("at", "1 hour").alias("hour")) for side in sides)
    assert unbounded_sides(left.join(right, ["page", "hour"])) == [()]


def test_a_join_that_keeps_a_side_forever_is_refused_at_its_line_with_the_side(
    spark: SparkSession,
) -> None:
    error = refusal(spark, joined(f"l.at <= r.at + {HOUR}"))
    assert error.startswith(f"{__file__}:{inspect.getsourcelines(joined)[1] + 2}: ")
    assert "flow pair stores all rows of the left side of a join, without limit" in error
    assert "unbounded=True" in error
    compiled(spark, joined(f"l.at <= r.at + {HOUR}"), unbounded=True)
    compiled(spark, joined(f"l.at BETWEEN r.at - {HOUR} AND r.at + {HOUR}"))


@pytest.mark.parametrize("on", ["page", ["page"]])
def test_the_condition_in_the_hint_names_the_columns_of_the_function_and_makes_the_join_bounded(
    spark: SparkSession, on: str | list[str]
) -> None:
    def pair(clicks: DataFrame, others: DataFrame) -> DataFrame:
        return clicks.join(others, on).select(clicks["click"])

    condition = re.search(r"join on (.*), or accept unbounded state", refusal(spark, pair))
    assert condition is not None
    assert condition[1] == (
        '(clicks["page"] == others["page"]) & clicks["at"].between(others["at"] - F.expr("INTERVAL 1 HOUR"),'
        ' others["at"] + F.expr("INTERVAL 1 HOUR"))'
    )

    def pasted(clicks: DataFrame, others: DataFrame) -> DataFrame:
        both = clicks.join(others, eval(condition[1], {"clicks": clicks, "others": others, "F": F}))
        return both.select(clicks["click"])

    compiled(spark, pasted)


def test_a_side_without_an_event_time_is_named(spark: SparkSession) -> None:
    error = refusal(spark, joined(f"l.at BETWEEN r.at - {HOUR} AND r.at + {HOUR}"), timed=False)
    assert "the left side and the right side" in error
    assert "the right side has no event time" in error
    assert "declare time= and late= for the topic of the right side" in error


def test_several_event_times_on_one_side_are_refused_unless_one_of_them_must_be_equal(
    spark: SparkSession,
) -> None:
    near = f"l.at BETWEEN r.at - {HOUR} AND r.at + {HOUR}"

    def pair(clicks: DataFrame, others: DataFrame) -> DataFrame:
        hours = clicks.withColumn("hour", F.window("at", "1 hour")).alias("l")
        both = hours.join(others.alias("r"), F.expr(f"l.page = r.page AND {near}"))
        return both.select("l.click", "l.hour")

    error = refusal(spark, pair, unbounded=True)
    assert "has several event times on the left side of a join: at, hour" in error


def test_a_bound_on_another_column_is_refused_since_spark_would_drop_by_the_event_time(
    spark: SparkSession,
) -> None:
    error = refusal(spark, joined(f"l.seen >= r.at - {HOUR} AND r.at >= l.at - {HOUR}"), unbounded=True)
    assert (
        "would lose rows of the left side of a join: the condition limits another column than the event time 'at'"
        in error
    )


def test_a_step_that_drops_late_rows_is_refused_after_a_join_without_a_time_bound(
    spark: SparkSession,
) -> None:
    def once(clicks: DataFrame, others: DataFrame) -> DataFrame:
        pages = others.select(F.col("page").alias("other"), F.col("at").alias("then"))
        return clicks.join(pages, F.expr(condition)).dropDuplicates(["click", "at"]).select("click")

    condition = "page = other"
    error = refusal(spark, once, unbounded=True)
    assert "pair would lose rows: a join without a time bound returns rows with old event times" in error
    assert "the Deduplicate after it drops them as late" in error
    condition = "page = other AND then BETWEEN at - INTERVAL 1 HOUR AND at + INTERVAL 1 HOUR"
    compiled(spark, once)


def test_a_step_that_drops_late_rows_is_refused_after_a_union_of_the_event_time_and_another_time(
    spark: SparkSession,
) -> None:
    def once(clicks: DataFrame, others: DataFrame) -> DataFrame:
        both = clicks.select("click", "at").union(others.select("click", second))
        return both.dropDuplicates(["click", "at"])

    second = "seen"
    error = refusal(spark, once)
    assert f"test_state_bounds.py:{once.__code__.co_firstlineno + 1}: flow pair would lose rows" in error
    assert (
        "a union puts 'seen' under the event time 'at', and the Deduplicate after it drops them as late"
        in error
    )
    second = "at"
    compiled(spark, once)


def test_a_stream_that_the_function_does_not_use_is_refused(spark: SparkSession) -> None:
    error = refusal(spark, lambda clicks, _: clicks.select("click"))
    assert "flow pair reads topic others, but its function does not use it" in error


def test_a_column_named_like_a_watermark_does_not_bound_the_state(spark: SparkSession) -> None:
    app = App(f"named-{uuid.uuid4().hex[:8]}")
    clicks = app.topic("clicks", Click, key="click", time="at")
    out = app.topic("out", key="x-T1ms")

    @app.flow(reads=[clicks], writes=out)
    def count(clicks: DataFrame) -> DataFrame:
        return clicks.groupBy(F.col("page").alias("x-T1ms")).agg(F.count(F.lit(1)).alias("clicks"))

    with pytest.raises(AppMistakes, match="the state of flow count grows with every new key, without limit"):
        compile_app(spark, app)


# Random conditions, compared with the plan that Spark would run

TIMES = st.sampled_from(["l.at", "r.at", "l.seen", "r.seen"])
SHIFTS = st.sampled_from(
    [
        "",
        f" + {HOUR}",
        f" - {HOUR}",
        " - INTERVAL '90' SECOND",
        " + INTERVAL 1 MONTH",
        " - make_interval(0, 0, 0, 1)",
        " + 2 * INTERVAL 1 HOUR",
    ]
)
SHIFTED = st.builds("{}{}".format, TIMES, SHIFTS)
COMPARED = st.one_of(
    st.builds("{} {} {}".format, SHIFTED, st.sampled_from(["<", "<=", ">", ">=", "="]), SHIFTED),
    st.builds("{} BETWEEN {} AND {}".format, TIMES, SHIFTED, SHIFTED),
    st.builds("unix_micros({}) >= unix_micros({}) - 3600".format, TIMES, TIMES),
    st.builds("CAST({} AS LONG) >= CAST({} AS LONG) - 3600".format, TIMES, TIMES),
    st.builds("CAST({} AS DATE) >= {}".format, TIMES, TIMES),
    st.sampled_from(["l.at <=> r.at", "l.click = 'x'", "l.page > 3", "true"]),
)
CONDITIONS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) OR ({})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def sides(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    def side(name: str) -> DataFrame:
        source = spark.readStream.format("rate").load()
        columns = source.select(
            F.col("timestamp").alias("at"),
            F.timestamp_millis("value").alias("seen"),
            F.col("value").cast("string").alias("click"),
            (F.col("value") % 7).alias("page"),
        )
        return columns.withWatermark("at", "10 seconds").alias(name)

    return side("l"), side("r")


def kept_by_spark(live: DataFrame) -> tuple[str, ...]:
    """The sides whose rows the physical plan never drops."""
    jvm: Any = live.sparkSession._jvm
    streaming = jvm.org.apache.spark.sql.execution.streaming
    run = streaming.runtime.IncrementalExecution
    defaults = [getattr(run, f"$lessinit$greater$default${number}")() for number in range(12, 16)]
    execution = run(
        live.sparkSession._jsparkSession,
        live._jdf.queryExecution().logical(),
        jvm.org.apache.spark.sql.streaming.OutputMode.Append(),
        "nowhere",
        jvm.java.util.UUID.randomUUID(),
        jvm.java.util.UUID.randomUUID(),
        0,
        jvm.scala.Option.empty(),
        streaming.checkpointing.OffsetSeqMetadata(0, 0, jvm.PythonUtils.toScalaMap({})),
        streaming.runtime.WatermarkPropagator.noop(),
        False,
        *defaults,
    )
    [join] = [
        node
        for node in nodes(execution.executedPlan())
        if class_name(node) == "StreamingSymmetricHashJoinExec"
    ]
    dropped = join.stateWatermarkPredicates()
    return tuple(side for side in ("left", "right") if not getattr(dropped, side)().isDefined())


@settings(max_examples=10)
@given(condition=CONDITIONS, is_filter=st.booleans(), is_pruned=st.booleans())
def test_a_side_is_bounded_if_and_only_if_the_plan_drops_its_rows(
    sides: tuple[DataFrame, DataFrame], condition: str, is_filter: bool, is_pruned: bool
) -> None:
    left, right = sides
    on: Column = F.expr("l.page = r.page")
    live = left.join(right, on if is_filter else on & F.expr(condition))
    if is_filter:
        live = live.where(condition)
    if is_pruned:
        live = live.select("l.click")
    [found] = unbounded_sides(live)
    kept = kept_by_spark(live)
    # Spark drops the rows of every side that we call bounded. If Spark drops rows by a column that the condition does
    # not name, the flow is refused.
    assert set(kept) <= set(found)
    if "seen" not in condition:
        assert found == kept
