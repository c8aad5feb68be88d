"""Rows of a key are written in the order of the log, whatever plan Spark chooses."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from faults.servers.spark import session_conf
from headrace.app import App
from headrace.flow.compile.compiler import compile_app
from headrace.flow.compile.lineage import coordinates, trace
from headrace.flow.compile.mistakes import FlowMistake
from headrace.model.declarations import Topic
from headrace.model.errors import AppMistakes
from tests.flow.topic_contents import committed

pytestmark = pytest.mark.usefixtures("compiled_plans")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATE = timedelta(hours=1)
_BROADCAST_BYTES = "spark.sql.autoBroadcastJoinThreshold"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
Function = Callable[..., DataFrame]


@dataclass(frozen=True)
class Step:
    step: int
    account: str
    at: datetime
    parts: list[int]


@dataclass(frozen=True)
class Account:
    account: str
    name: str


class Ledger:
    """Steps of accounts, a table of accounts, and a function over them."""

    def __init__(self, function: Function, *, key: str | list[str] = "account", table: bool = False) -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = App(f"ledger-{mark}")
        self.steps: Topic = self.app.topic(f"steps-{mark}", Step, key="step", time="at", late=LATE)
        self.accounts: Topic = self.app.table(f"accounts-{mark}", Account, key="account")
        self.out: Topic = self.app.topic(f"out-{mark}", key=key)
        reads = [self.steps, self.accounts] if table else [self.steps]
        declared = self.app.flow(
            reads=reads, writes=self.out, name=f"flow-{mark}", unbounded=True, deterministic=True
        )
        self.flow = declared(function)

    def run(
        self, world: FlowWorld, steps: list[Step], *, partitions: int = 1, max_rows: int = 100_000
    ) -> None:
        world.cluster.ensure_topic(self.steps.name, partitions)
        world.declare(self.app)
        for partition in range(partitions):
            share = [step for step in steps if step.step % partitions == partition]
            world.write(self.steps, share, partition=partition)
        with world.running(self.app, follow=False, max_rows=max_rows) as run:
            run.wait_until_derived()

    def rows(self, world: FlowWorld) -> dict[str, list[Any]]:
        """The rows of each key, in the order of the topic."""
        rows_by_key: dict[str, list[Any]] = {}
        for record in committed(world.cluster.bootstrap, self.out.name):
            rows_by_key.setdefault(record.key().decode(), []).append(json.loads(record.value()))
        return rows_by_key


def steps(count: int, accounts: int) -> list[Step]:
    return [
        Step(number, f"a{number * 7 % accounts}", NOON + timedelta(seconds=number), [number, -number])
        for number in range(count)
    ]


def by_account(written: list[Step]) -> dict[str, list[int]]:
    rows_by_key: dict[str, list[int]] = {}
    for step in written:
        rows_by_key.setdefault(step.account, []).append(step.step)
    return rows_by_key


def test_a_shuffled_join_with_a_table_keeps_the_order_of_each_key(flow_world: FlowWorld) -> None:
    def named(events: DataFrame, accounts: DataFrame) -> DataFrame:
        return events.join(accounts, "account").select("name", "account", "step")

    ledger = Ledger(named, key="name", table=True)
    flow_world.declare(ledger.app)
    flow_world.write(ledger.accounts, [Account(f"a{number}", f"n{number % 10}") for number in range(50)])
    written = steps(600, 50)
    with session_conf(flow_world.spark, {_BROADCAST_BYTES: "-1", _SHUFFLE_PARTITIONS: "5"}):
        ledger.run(flow_world, written)
    rows_by_key = {key: [row["step"] for row in rows] for key, rows in ledger.rows(flow_world).items()}
    expected: dict[str, list[int]] = {}
    for step in written:
        expected.setdefault(f"n{int(step.account[1:]) % 10}", []).append(step.step)
    assert rows_by_key == expected


def test_the_duplicate_that_is_first_in_the_log_is_retained(
    flow_world: FlowWorld,
) -> None:
    def once(events: DataFrame) -> DataFrame:
        halved = events.withColumn("pair", F.floor(F.col("step") / 2))
        return halved.dropDuplicates(["pair"]).select("account", "step")

    ledger = Ledger(once)
    written = [Step(number, f"a{number // 2 * 7 % 20}", NOON, []) for number in range(400)]
    with session_conf(flow_world.spark, {_SHUFFLE_PARTITIONS: "3"}):
        ledger.run(flow_world, written, partitions=2, max_rows=150)
    rows_by_key = {key: [row["step"] for row in rows] for key, rows in ledger.rows(flow_world).items()}
    # Even steps are in partition 0, odd steps in partition 1. Within a batch, the rows of partition 1 are last. Later
    # batches have only duplicates.
    assert all(sorted(rows) == sorted({step // 2 * 2 for step in rows}) for rows in rows_by_key.values()), (
        rows_by_key
    )
    assert rows_by_key == by_account([entry for entry in written if entry.step % 2 == 0])


def test_exploded_rows_of_one_record_are_in_the_order_of_its_list(flow_world: FlowWorld) -> None:
    def parts(events: DataFrame) -> DataFrame:
        halves = events.select("account", "step", F.explode("parts").alias("part"))
        return halves.union(events.select("account", "step", F.lit(0).cast("long"))).repartition(4, "part")

    ledger = Ledger(parts)
    written = steps(60, 5)
    ledger.run(flow_world, written)
    expected: dict[str, list[tuple[int, int]]] = {}
    for step in written:
        expected.setdefault(step.account, []).extend((step.step, part) for part in [*step.parts, 0])
    rows_by_key = ledger.rows(flow_world)
    assert {
        key: [(row["step"], row["part"]) for row in rows] for key, rows in rows_by_key.items()
    } == expected


def test_rows_of_one_record_and_several_rows_of_a_table_are_in_the_order_of_their_values(
    flow_world: FlowWorld,
) -> None:
    def crossed(events: DataFrame, accounts: DataFrame) -> DataFrame:
        return events.crossJoin(accounts.select("name")).select("account", "step", "name")

    ledger = Ledger(crossed, table=True)
    flow_world.declare(ledger.app)
    flow_world.write(ledger.accounts, [Account(f"t{name}", name) for name in "hgfedcba"])
    ledger.run(flow_world, steps(20, 2))
    for rows in ledger.rows(flow_world).values():
        assert [(row["step"], row["name"]) for row in rows] == sorted(
            (row["step"], row["name"]) for row in rows
        )
        assert len(rows) == 80


def test_among_equal_rows_max_by_selects_the_newest_record_and_min_by_the_oldest(
    flow_world: FlowWorld,
) -> None:
    def ends(events: DataFrame) -> DataFrame:
        return events.groupBy("account").agg(
            F.max_by("step", F.lit(1)).alias("newest"), (F.min_by("step", F.lit(1)) * 1).alias("oldest")
        )

    ledger = Ledger(ends)
    written = steps(300, 4)
    with session_conf(flow_world.spark, {_SHUFFLE_PARTITIONS: "3"}):
        ledger.run(flow_world, written, max_rows=120)
    last = {key: (rows[-1]["oldest"], rows[-1]["newest"]) for key, rows in ledger.rows(flow_world).items()}
    assert last == {key: (numbers[0], numbers[-1]) for key, numbers in by_account(written).items()}


def _refusal(world: FlowWorld, function: Function, **options: Any) -> str:
    with pytest.raises(AppMistakes) as rows_by_key:
        compile_app(world.spark, Ledger(function, **options).app)
    [mistake] = rows_by_key.value.mistakes
    assert mistake.location is not None
    assert mistake.location.file == __file__
    return str(mistake)


def _per_window(length: str) -> Function:
    def days(events: DataFrame) -> DataFrame:
        windows = events.groupBy("account", F.window("at", length).alias("window")).agg(
            F.sum("step").alias("total")
        )
        return windows.select("account", F.to_date("window.start").alias("day"), "total")

    return days


def _per_minute(events: DataFrame) -> DataFrame:
    minutes = events.groupBy("account", F.window("at", "1 minute").alias("minute"))
    return minutes.agg(F.sum("step").alias("total")).select(
        "account", F.col("minute.start").alias("minute"), "total"
    )


@pytest.mark.parametrize(
    ("function", "key"),
    [
        pytest.param(_per_minute, "account", id="the key has no window"),
        pytest.param(_per_window("12 hours"), ["account", "day"], id="the day of a window of 12 hours"),
        pytest.param(
            lambda events: events.groupBy("account", "step").agg(F.count("*").alias("n")),
            "account",
            id="the key has no column of the grouping",
        ),
        pytest.param(
            lambda events: (
                events.groupBy(F.col("step").alias("n"), "account")
                .agg(F.count("*").alias("times"))
                .select(F.upper("account").alias("account"), "n", "times")
            ),
            ["account", "n"],
            id="two groups can have the same key",
        ),
    ],
)
def test_an_aggregation_whose_key_lacks_a_grouped_column_is_refused(
    flow_world: FlowWorld, function: Function, key: str | list[str]
) -> None:
    refused = _refusal(flow_world, function, key=key)
    assert "groups by" in refused
    assert "an arbitrary one of their rows" in refused


@pytest.mark.parametrize(
    ("function", "key"),
    [
        pytest.param(_per_minute, ["account", "minute"], id="the start of a window"),
        pytest.param(_per_window("2 days"), ["account", "day"], id="the day of a window of days"),
        pytest.param(
            lambda events: (
                events.groupBy("account", F.upper("account").alias("loud"))
                .agg(F.count("*").alias("n"))
                .select("account", "n")
            ),
            "account",
            id="a grouped column that is computed from the key",
        ),
        pytest.param(
            lambda events: (
                events.groupBy("step")
                .agg(F.count("*").alias("n"))
                .select(F.col("step").cast("string").alias("account"), "n")
            ),
            "account",
            id="a number as text",
        ),
    ],
)
def test_a_key_that_distinguishes_every_group_is_accepted(
    flow_world: FlowWorld, function: Function, key: str | list[str]
) -> None:
    compile_app(flow_world.spark, Ledger(function, key=key).app)


def test_a_view_whose_key_lacks_a_grouped_column_is_refused(flow_world: FlowWorld) -> None:
    ledger = Ledger(_per_minute, key=["account", "minute"])
    ledger.app.view("accounts", ledger.out, key="account")
    with pytest.raises(AppMistakes, match="groups by minute, which the key of view accounts"):
        compile_app(flow_world.spark, ledger.app)


def test_a_union_of_aggregations_needs_a_constant_in_the_key(flow_world: FlowWorld) -> None:
    def parts(events: DataFrame, kind: str) -> DataFrame:
        return (
            events.groupBy("account")
            .agg(F.count("*").alias("n"))
            .select("account", F.lit(kind).alias("kind"), "n")
        )

    def both(events: DataFrame) -> DataFrame:
        return parts(events, "all").union(parts(events.where("step > 3"), "some"))

    assert "several can have the same key" in _refusal(flow_world, both, key="account")
    compile_app(flow_world.spark, Ledger(both, key=["account", "kind"]).app)


def test_a_column_with_a_reserved_name_is_refused(flow_world: FlowWorld) -> None:
    def renamed(events: DataFrame) -> DataFrame:
        return events.select("account", F.col("step").alias("_headrace_at0"))

    assert "returns a column _headrace_at0, but names that begin with _headrace_" in _refusal(
        flow_world, renamed
    )


def test_a_python_step_over_whole_partitions_is_refused(flow_world: FlowWorld) -> None:
    def mapped(events: DataFrame) -> DataFrame:
        return events.mapInPandas(lambda frames: frames, "account string")

    assert "(MapInPandas) that hides which record a row comes from" in _refusal(flow_world, mapped)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        pytest.param(
            lambda events, accounts: accounts.join(events, "account", "left").select("account"),
            "rows of a table without an event",
            id="all rows of a table",
        ),
        pytest.param(
            lambda events, accounts: accounts.join(events, "account", "left_semi"),
            "rows of a table without an event",
            id="rows of a table with a matching event",
        ),
        pytest.param(
            lambda events, accounts: events.select("account").union(accounts.select("account")),
            "rows from events with other rows",
            id="a union of events and a table",
        ),
        pytest.param(lambda _, accounts: accounts, "do not come from its inputs", id="a table alone"),
    ],
)
def test_rows_without_an_input_record_are_refused(
    flow_world: FlowWorld, function: Function, reason: str
) -> None:
    ledger = Ledger(function, table=True)
    spark = flow_world.spark
    records = spark.createDataFrame([("a", 0, 0)], "account string, partition int, offset long")
    accounts = spark.createDataFrame([("a", "A")], "account string, name string")
    with pytest.raises(FlowMistake, match=reason):
        trace(ledger.flow, [records.select("account", *coordinates(0)), accounts])
