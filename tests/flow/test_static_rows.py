"""Steps over tables, whose rows have no order, derive the same rows under every plan, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from faults.servers.spark import session_conf
from headrace.app import App
from headrace.flow.compile.compiler import compile_app
from headrace.flow.compile.lineage import BATCH, coordinates, lineage_columns, trace
from headrace.model.declarations import Flow
from headrace.model.errors import AppMistakes
from tests.flow.test_order import Account, Step

Function = Callable[..., DataFrame]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVENTS = "step long, account string, at timestamp, parts array<long>, partition int, offset long, batch long"
NAMES = "hgfedcba"


def declare(function: Function, *, key: str | list[str] = "account", joins: bool = False) -> tuple[App, Flow]:
    app = App("static")
    steps = app.topic("steps", Step, key="step", time="at")
    other = app.topic("others", Step, key="step", time="at")
    accounts = app.table("accounts", Account, key="account")
    out = app.topic("out", key=key)
    reads = [steps, other] if joins else [steps, accounts]
    return app, app.flow(reads=reads, writes=out, unbounded=True, deterministic=True)(function)


def events(spark: SparkSession, *steps_and_batches: tuple[int, int]) -> DataFrame:
    """``steps_and_batches`` has, for each offset, a step and the number of the batch that reads it."""
    rows = [
        (step, "a1", NOON, [], 0, offset, batch) for offset, (step, batch) in enumerate(steps_and_batches)
    ]
    return spark.createDataFrame(rows, EVENTS)


def derived(spark: SparkSession, flow: Flow, names: str, partitions: int) -> list[dict[str, Any]]:
    shown = events(spark, (0, 0), (1, 0)).select("step", "account", "at", "parts", *coordinates(0))
    table = spark.createDataFrame([(f"t{name}", "a1") for name in names], "account string, name string")
    traced = trace(flow, [shown, table.repartition(partitions)])
    ordered = traced.orderBy(*lineage_columns(traced), *flow_columns(traced)).select(*flow_columns(traced))
    return [row.asDict(recursive=True) for row in ordered.collect()]


def flow_columns(traced: DataFrame) -> list[str]:
    return [name for name in traced.columns if name not in lineage_columns(traced)]


def several(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    """Join each step with every row of the table."""
    rows = accounts.select(F.col("name").alias("account"), F.col("account").alias("who"))
    return steps.join(rows, "account")


def stacked(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    two = F.stack(F.lit(2), F.lit("p"), F.lit(1), F.lit("q")).alias("letter", "number")
    return several(steps, accounts).select("account", "step", "who", two)


def inlined(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    letters = F.array(*(F.struct(F.lit(letter).alias("letter")) for letter in "pq"))
    return several(steps, accounts).select("account", "step", "who", F.inline(letters))


def first_of_several(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    return several(steps, accounts).dropDuplicates(["step"]).select("account", "step", "who")


def first_of_several_nested(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    nested = several(steps, accounts).select(
        "account", "step", F.struct("who").alias("pair"), F.create_map("who", "step").alias("map")
    )
    return nested.dropDuplicates(["step"]).select("account", "step", "pair.who")


def greatest_of_several(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    rows = several(steps, accounts).groupBy("account")
    return rows.agg(F.max_by("who", "at").alias("who"), F.min_by("who", "at").alias("least"))


def greatest_two(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    return several(steps, accounts).groupBy("account").agg(F.expr("max_by(who, at, 2)").alias("who"))


def first_of_a_table(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    return several(steps, accounts.dropDuplicates(["name"])).select("account", "step", "who")


def greatest_of_a_table(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    newest = accounts.groupBy("name").agg(F.max_by("account", F.lit(1)).alias("account"))
    return several(steps, newest).select("account", "step", "who")


@pytest.mark.parametrize(
    ("function", "who"),
    [
        (stacked, ["ta", "tb", "tc", "td", "te", "tf", "tg", "th"] * 4),
        (inlined, ["ta", "tb", "tc", "td", "te", "tf", "tg", "th"] * 4),
        (first_of_several, ["ta", "ta"]),
        (first_of_several_nested, ["ta", "ta"]),
        (greatest_of_several, ["th"]),
        (greatest_two, [["th", "tg"]]),
        (first_of_a_table, ["ta", "ta"]),
        (greatest_of_a_table, ["th", "th"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_plan_derives_the_same_rows_in_the_same_order(
    spark: SparkSession, function: Function, who: list[Any]
) -> None:
    _, flow = declare(function)
    found = derived(spark, flow, NAMES, 1)
    assert [row["who"] for row in found] == who
    shuffled: dict[str, str | None] = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
    }
    with session_conf(spark, shuffled):
        assert derived(spark, flow, NAMES[::-1], 5) == found


def test_stack_fills_an_incomplete_row_with_null(spark: SparkSession) -> None:
    _, flow = declare(stacked)
    found = [(row["letter"], row["number"]) for row in derived(spark, flow, "a", 1)]
    assert found == [("p", 1), ("q", None)] * 2


def test_inline_outer_keeps_a_row_whose_array_is_empty(spark: SparkSession) -> None:
    def outer(steps: DataFrame, accounts: DataFrame) -> DataFrame:
        letters = F.expr("filter(array(struct('p' AS letter), null), one -> step > 0)")
        return steps.select("account", "step", F.inline_outer(letters))

    found = [(row["step"], row["letter"]) for row in derived(spark, declare(outer)[1], "a", 1)]
    assert found == [(0, None), (1, "p"), (1, None)]


def test_a_derived_row_of_a_semi_join_belongs_to_the_batch_of_its_first_match(spark: SparkSession) -> None:
    def seen(steps: DataFrame, others: DataFrame) -> DataFrame:
        partners = others.select(F.col("step").alias("partner"))
        return steps.join(partners, F.col("step") == F.col("partner"), "left_semi").select("account", "step")

    _, flow = declare(seen, joins=True)
    frames = [
        frame.select("step", "account", "at", "parts", *coordinates(number), F.col("batch").alias(BATCH))
        for number, frame in enumerate(
            (events(spark, (1, 0), (2, 0), (3, 7), (4, 0)), events(spark, (2, 1), (1, 2), (1, 3), (3, 4)))
        )
    ]
    traced = trace(flow, frames)
    found = traced.orderBy(*lineage_columns(traced)).select(BATCH, "step").collect()
    assert [tuple(row) for row in found] == [(1, 2), (2, 1), (7, 3)]


def test_sql_with_common_table_expressions_and_pipes_keeps_the_order_of_the_log(spark: SparkSession) -> None:
    def named(steps: DataFrame, accounts: DataFrame) -> DataFrame:
        text = """
            WITH known AS (
                SELECT step, s.account, a.account AS who FROM {steps} s JOIN {accounts} a ON s.account = name
            )
            SELECT * FROM known WHERE step = 1 UNION ALL (FROM known |> WHERE step = 0)
        """
        return steps.sparkSession.sql(text, steps=steps, accounts=accounts)

    app, flow = declare(named)
    compile_app(spark, app)
    found = derived(spark, flow, "ba", 1)
    assert [(row["step"], row["who"]) for row in found] == [(0, "ta"), (0, "tb"), (1, "ta"), (1, "tb")]


def refusal(spark: SparkSession, function: Function, **options: Any) -> str:
    with pytest.raises(AppMistakes) as found:
        compile_app(spark, declare(function, **options)[0])
    [mistake] = found.value.mistakes
    assert mistake.location is not None
    assert mistake.location.file == __file__
    return str(mistake)


def numbered(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    number = F.row_number().over(Window.partitionBy("name").orderBy("name"))
    return several(steps, accounts.withColumn("n", number).where("n = 1")).select("account", "step", "who")


def summed_row_by_row(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    so_far = Window.partitionBy("name").orderBy("name").rowsBetween(Window.unboundedPreceding, 0)
    counted = accounts.withColumn("account", F.count("*").over(so_far).cast("string"))
    return several(steps, counted).select("account", "step", "who")


def picked_in_a_window(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    newest = F.max_by("account", F.lit(1)).over(Window.partitionBy("name"))
    return several(steps, accounts.withColumn("account", newest).distinct()).select("account", "step", "who")


def limited(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    return several(steps, accounts.limit(1)).select("account", "step", "who")


def in_a_subquery(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    single = "SELECT max_by(account, 1) FROM {accounts}"
    return steps.sparkSession.sql(
        f"SELECT account, step, ({single}) AS who FROM {{steps}}", steps=steps, accounts=accounts
    )


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (numbered, "row_number() depends on the order of equal rows"),
        (summed_row_by_row, "depends on the order of equal rows"),
        (picked_in_a_window, "max_by(account"),
        (limited, "uses limit on a table, whose rows have no order"),
        (in_a_subquery, "selects one of several rows in a subquery"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_step_that_depends_on_the_order_of_a_table_is_refused(
    spark: SparkSession, function: Function, reason: str
) -> None:
    assert reason in refusal(spark, function)


def ranked(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    rank = F.rank().over(Window.partitionBy("name").orderBy("account"))
    return several(steps, accounts.withColumn("n", rank).where("n = 1")).select("account", "step", "who")


def counted(steps: DataFrame, accounts: DataFrame) -> DataFrame:
    rows = accounts.withColumn("account", F.count("*").over(Window.partitionBy("name")).cast("string"))
    return several(steps, rows.distinct()).select("account", "step", "who")


@pytest.mark.parametrize("function", [ranked, counted])
def test_a_step_that_treats_equal_rows_of_a_table_alike_is_accepted(
    spark: SparkSession, function: Function
) -> None:
    compile_app(spark, declare(function)[0])
