"""What may stand behind an aggregation: rows of the stream are those of the whole in one go, or it is refused."""

from __future__ import annotations

import inspect
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from headrace.app import App
from headrace.flow.compiled import Compiled
from headrace.flow.compiling import compile_app
from headrace.model.errors import AppMistakes
from tests.flow.reading import folded
from tests.support.flows import FlowWorld

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
    assert mistake.place is not None
    assert mistake.place.file == __file__
    return str(mistake)


def by_place(moves: DataFrame) -> DataFrame:
    return moves.groupBy("place").agg(F.sum("amount").alias("total"), F.max("move").alias("move"))


def bands(moves: DataFrame) -> DataFrame:
    return moves.sparkSession.createDataFrame([("a", 5)], "place string, least bigint")


def test_a_row_that_stops_matching_could_not_be_taken_back_so_the_filter_is_refused_at_its_line(
    spark: SparkSession,
) -> None:
    def filtered(moves: DataFrame) -> DataFrame:
        summed = by_place(moves)
        return summed.where(F.col("total") > 10)

    told = refusal(spark, filtered)
    line = inspect.getsourcelines(filtered)[1] + 2
    assert told.startswith(f"{__file__}:{line}: flow sum keeps rows by (total#")
    assert "_deleted" in told


@pytest.mark.parametrize(
    "function",
    [
        lambda moves: by_place(moves).where("total > 10"),
        lambda moves: by_place(moves).dropna(),
        lambda moves: moves.sparkSession.sql(
            "SELECT place, sum(amount) AS total FROM {moves} GROUP BY place HAVING sum(amount) > 10",
            moves=moves,
        ),
        lambda moves: by_place(moves).join(bands(moves), F.expr("total > least")),
        lambda moves: by_place(moves).join(bands(moves), F.expr("total = least"), "left_anti"),
        lambda moves: by_place(moves).withColumn("one", F.explode(F.expr("sequence(1, total)"))),
        lambda moves: by_place(moves).dropDuplicates(["place"]),
        lambda moves: by_place(moves).mapInPandas(lambda frames: frames, "place string, total bigint"),
        lambda moves: by_place(moves).select(F.col("move").alias("place"), "total"),
        lambda moves: by_place(moves).groupBy("total").agg(F.max("place").alias("place")),
        lambda moves: by_place(moves).join(moves.select("place", "at"), "place"),
        lambda moves: by_place(moves).withColumn(
            "rank", F.row_number().over(Window.partitionBy("place").orderBy("total"))
        ),
        lambda moves: by_place(moves).select("place", "total").subtract(bands(moves)),
        lambda moves: by_place(moves).select("place", "total").exceptAll(bands(moves)),
        lambda moves: by_place(moves).unionByName(
            by_place(moves).select(F.col("move").alias("place"), "total", "move")
        ),
        lambda moves: moves.groupBy("place", F.session_window("at", "1 minute")).count(),
    ],
)
def test_what_could_leave_a_row_behind_is_refused(spark: SparkSession, function: Any) -> None:
    refusal(spark, function)


@pytest.mark.parametrize(
    "function",
    [
        lambda moves: moves.groupBy("place").applyInPandas(lambda frame: frame, moves.schema),
        lambda moves: (
            moves.groupBy("place")
            .cogroup(moves.groupBy("place"))
            .applyInPandas(lambda one, other: one, moves.schema)
        ),
        lambda moves: moves.sparkSession.sql("SELECT DISTINCT place, at FROM {moves}", moves=moves),
        lambda moves: moves.select("place").subtract(bands(moves).select("place")),
    ],
)
def test_what_would_see_one_batch_at_a_time_is_refused(spark: SparkSession, function: Any) -> None:
    assert "one batch only" in refusal(spark, function)


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
def test_what_depends_on_the_order_of_arrival_is_refused(spark: SparkSession, result: str) -> None:
    told = refusal(spark, lambda moves: moves.groupBy("place").agg(F.expr(result).alias("what")))
    assert "depends on the order of the rows" in told


def test_a_view_under_a_key_that_changes_is_refused_where_it_is_declared(spark: SparkSession) -> None:
    assert "a key of view other" in refusal(spark, by_place, view_key="total")
    assert compiled(spark, by_place, view_key="place").fixed == {"place"}


@pytest.mark.parametrize(
    ("function", "fixed"),
    [
        (lambda moves: by_place(moves).where(F.col("place") != "x"), {"place"}),
        (lambda moves: by_place(moves).withColumn("_deleted", F.col("total") < 10), {"place"}),
        (lambda moves: by_place(moves).join(bands(moves), "place"), {"place", "least"}),
        (
            lambda moves: by_place(moves).join(bands(moves).drop("place"), F.expr("total > least"), "left"),
            {"place"},
        ),
        (lambda moves: by_place(moves.dropDuplicates(["move"])), {"place"}),
        (lambda moves: by_place(moves.where("amount > 3")).repartition(2, "place").hint("x"), {"place"}),
        (lambda moves: by_place(moves).unpivot("place", ["total"], "what", "value"), {"place", "what"}),
        (
            lambda moves: by_place(moves).withColumn("part", F.explode(F.split("place", ","))),
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
def test_what_depends_on_nothing_but_the_groups_is_let_through(
    spark: SparkSession, function: Any, fixed: set[str]
) -> None:
    key = ["place", "until"] if "until" in fixed else "place"
    assert compiled(spark, function, key=key).fixed == fixed


def test_rows_that_stop_matching_go_by_being_marked(flow_world: FlowWorld) -> None:
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
            run.derived()
    batch = large(flow_world.spark.createDataFrame(written))
    expected = {row.place: row.total for row in batch.where("NOT _deleted").collect()}
    served = {key: row["total"] for key, row in folded(flow_world.cluster.bootstrap, out.name).items()}
    assert served == expected == {"b": 13, "c": 31}
