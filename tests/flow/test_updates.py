"""Steps after an aggregation: the stream derives the same rows as the whole history, or the flow is refused."""

from __future__ import annotations

import inspect
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.flow.compile.compiler import Compiled, compile_app
from headrace.model.errors import AppMistakes
from tests.flow.topic_contents import last_values

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Move:
    move: str
    place: str
    amount: int
    at: datetime


def compiled(
    spark: SparkSession, function: Any, *, key: str | list[str] = "place", view_key: str = ""
) -> Compiled:
    app = App("updates")
    moves = app.topic("moves", Move, key="move", time="at", late=timedelta(seconds=10))
    out = app.topic("out", key=key)
    app.flow(reads=[moves], writes=out, name="sum", unbounded=True, deterministic=True)(function)
    if view_key:
        app.view("other", out, key=view_key)
    return compile_app(spark, app)[0][0]


def refusal(spark: SparkSession, function: Any, **keys: str) -> str:
    with pytest.raises(AppMistakes) as found:
        compiled(spark, function, **keys)
    [mistake] = found.value.mistakes
    assert mistake.location is not None
    assert mistake.location.file == __file__
    return str(mistake)


def group_totals(moves: DataFrame) -> DataFrame:
    return moves.groupBy("place").agg(F.sum("amount").alias("total"), F.max("move").alias("move"))


def static_rows(moves: DataFrame) -> DataFrame:
    return moves.sparkSession.createDataFrame([("a", 5)], "place string, least bigint")


def test_a_filter_by_an_aggregate_is_refused_at_its_line(
    spark: SparkSession,
) -> None:
    def filtered(moves: DataFrame) -> DataFrame:
        summed = group_totals(moves)
        return summed.where(F.col("total") > 10)

    error = refusal(spark, filtered)
    line = inspect.getsourcelines(filtered)[1] + 2
    assert error.startswith(f"{__file__}:{line}: flow sum filters rows by (total#")
    assert "_deleted" in error


@pytest.mark.parametrize(
    "function",
    [
        lambda moves: group_totals(moves).where("total > 10"),
        lambda moves: group_totals(moves).dropna(),
        lambda moves: moves.sparkSession.sql(
            "SELECT place, sum(amount) AS total FROM {moves} GROUP BY place HAVING sum(amount) > 10",
            moves=moves,
        ),
        lambda moves: group_totals(moves).join(static_rows(moves), F.expr("total > least")),
        lambda moves: group_totals(moves).join(static_rows(moves), F.expr("total = least"), "left_anti"),
        lambda moves: group_totals(moves).withColumn("one", F.explode(F.expr("sequence(1, total)"))),
        lambda moves: group_totals(moves).dropDuplicates(["place"]),
        lambda moves: group_totals(moves).mapInPandas(lambda frames: frames, "place string, total bigint"),
        lambda moves: group_totals(moves).select(F.col("move").alias("place"), "total"),
        lambda moves: group_totals(moves).groupBy("total").agg(F.max("place").alias("place")),
        lambda moves: group_totals(moves).join(moves.select("place", "at"), "place"),
        lambda moves: group_totals(moves).withColumn(
            "rank", F.row_number().over(Window.partitionBy("place").orderBy("total"))
        ),
        lambda moves: group_totals(moves).select("place", "total").subtract(static_rows(moves)),
        lambda moves: group_totals(moves).select("place", "total").exceptAll(static_rows(moves)),
        lambda moves: group_totals(moves).unionByName(
            group_totals(moves).select(F.col("move").alias("place"), "total", "move")
        ),
        lambda moves: moves.groupBy("place", F.session_window("at", "1 minute")).count(),
    ],
)
def test_a_step_that_could_leave_an_outdated_row_is_refused(spark: SparkSession, function: Any) -> None:
    refusal(spark, function)


@pytest.mark.parametrize(
    "function",
    [
        lambda moves: moves.groupBy("place").applyInPandas(lambda frame: frame, moves.schema),
        lambda moves: (
            moves.groupBy("place")
            .cogroup(moves.groupBy("place"))
            .applyInPandas(lambda left, right: left, moves.schema)
        ),
        lambda moves: moves.sparkSession.sql("SELECT DISTINCT place, at FROM {moves}", moves=moves),
        lambda moves: moves.select("place").subtract(static_rows(moves).select("place")),
    ],
)
def test_a_step_that_sees_only_one_batch_is_refused(spark: SparkSession, function: Any) -> None:
    assert "for each batch separately" in refusal(spark, function)


@pytest.mark.parametrize(
    "result",
    [
        "first(move)",
        "last(move)",
        "any_value(move)",
        "collect_list(move)",
        "size(collect_set(move)) + first(amount)",
    ],
)
def test_an_aggregate_that_depends_on_the_order_of_arrival_is_refused(
    spark: SparkSession, result: str
) -> None:
    error = refusal(spark, lambda moves: moves.groupBy("place").agg(F.expr(result).alias("what")))
    assert "depends on the order of the rows" in error


def test_a_view_keyed_by_an_aggregated_column_is_refused_at_its_declaration(spark: SparkSession) -> None:
    assert "a key of view other" in refusal(spark, group_totals, view_key="total")
    assert compiled(spark, group_totals, view_key="place").fixed == {"place"}


@pytest.mark.parametrize(
    ("function", "fixed"),
    [
        (lambda moves: group_totals(moves).where(F.col("place") != "x"), {"place"}),
        (lambda moves: group_totals(moves).withColumn("_deleted", F.col("total") < 10), {"place"}),
        (lambda moves: group_totals(moves).join(static_rows(moves), "place"), {"place", "least"}),
        (
            lambda moves: group_totals(moves).join(
                static_rows(moves).drop("place"), F.expr("total > least"), "left"
            ),
            {"place"},
        ),
        (lambda moves: group_totals(moves.dropDuplicates(["move"])), {"place"}),
        (
            lambda moves: group_totals(moves.where("amount > 3")).repartition(2, "place").hint("x"),
            {"place"},
        ),
        (
            lambda moves: group_totals(moves).unpivot("place", ["total"], "what", "value"),
            {"place", "what"},
        ),
        (
            lambda moves: group_totals(moves).withColumn("part", F.explode(F.split("place", ","))),
            {"place", "part"},
        ),
        (
            lambda moves: (
                moves.groupBy(F.window("at", "1 minute").alias("window"), F.upper("place").alias("place"))
                .agg(
                    F.sort_array(F.collect_list("move")).alias("moves"),
                    F.size(F.collect_set("move")).alias("size"),
                )
                .where(F.col("window.start") > F.lit(NOON))
                .select("place", F.col("window.end").alias("until"), "moves", "size")
            ),
            {"place", "until"},
        ),
    ],
)
def test_a_step_that_depends_only_on_grouped_columns_is_accepted(
    spark: SparkSession, function: Any, fixed: set[str]
) -> None:
    key = ["place", "until"] if "until" in fixed else "place"
    assert compiled(spark, function, key=key).fixed == fixed


def test_rows_marked_as_deleted_disappear(flow_world: FlowWorld) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"updates-{mark}")
    moves = app.topic(f"moves-{mark}", Move, key="move", time="at", late=timedelta(seconds=10))
    out = app.topic(f"out-{mark}", key="place")

    @app.flow(reads=[moves], writes=out, name=f"large-{mark}", unbounded=True)
    def large(moves: DataFrame) -> DataFrame:
        summed = moves.groupBy("place").agg(F.sum("amount").alias("total"))
        return summed.withColumn("_deleted", F.col("total") <= 10)

    amounts = [("a", 20), ("b", 5), ("c", 30), ("a", -15), ("b", 8), ("c", 1)]
    written = [
        Move(f"m{at}", place, amount, NOON + timedelta(seconds=at))
        for at, (place, amount) in enumerate(amounts)
    ]
    flow_world.declare(app)
    for some in (written[:3], written[3:]):
        flow_world.write(moves, some)
        with flow_world.running(app, follow=False) as run:
            run.wait_until_derived()
    batch = large(flow_world.spark.createDataFrame(written))
    expected = {row.place: row.total for row in batch.where("NOT _deleted").collect()}
    served = {key: row["total"] for key, row in last_values(flow_world.cluster.bootstrap, out.name).items()}
    assert served == expected == {"b": 13, "c": 31}
