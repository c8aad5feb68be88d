"""Rows of a key are written in the order of the log, whatever plan Spark makes of the function."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App
from headrace.flow.compiling import compile_app
from headrace.flow.lineage import coordinates, trace
from headrace.flow.mistakes import FlowMistake
from headrace.model.errors import AppMistakes
from headrace.model.topic import Topic
from tests.flow.reading import committed
from tests.support.flows import FlowWorld

pytestmark = pytest.mark.usefixtures("as_for_users")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATE = timedelta(hours=1)
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
    """Steps of accounts, a table of accounts, and what a function makes of them."""

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
            share = [one for one in steps if one.step % partitions == partition]
            world.write(self.steps, share, partition=partition)
        with world.running(self.app, follow=False, max_rows=max_rows) as run:
            run.derived()

    def rows(self, world: FlowWorld) -> dict[str, list[Any]]:
        """The rows of each key, in the order of the topic."""
        found: dict[str, list[Any]] = {}
        for record in committed(world.cluster.bootstrap, self.out.name):
            found.setdefault(record.key().decode(), []).append(json.loads(record.value()))
        return found


def steps(count: int, accounts: int) -> list[Step]:
    return [
        Step(number, f"a{number * 7 % accounts}", NOON + timedelta(seconds=number), [number, -number])
        for number in range(count)
    ]


def by_account(written: list[Step]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in written:
        found.setdefault(one.account, []).append(one.step)
    return found


@contextlib.contextmanager
def spark_conf(world: FlowWorld, **values: str) -> Iterator[None]:
    """Names with ``_`` for a dot."""
    for name, value in values.items():
        world.spark.conf.set(f"spark.sql.{name.replace('__', '.')}", value)
    try:
        yield
    finally:
        for name in values:
            world.spark.conf.unset(f"spark.sql.{name.replace('__', '.')}")


def test_a_join_with_a_table_that_is_shuffled_keeps_the_order_of_a_key(flow_world: FlowWorld) -> None:
    def named(events: DataFrame, accounts: DataFrame) -> DataFrame:
        return events.join(accounts, "account").select("name", "account", "step")

    ledger = Ledger(named, key="name", table=True)
    flow_world.declare(ledger.app)
    flow_world.write(ledger.accounts, [Account(f"a{number}", f"n{number % 10}") for number in range(50)])
    written = steps(600, 50)
    with spark_conf(flow_world, autoBroadcastJoinThreshold="-1", shuffle__partitions="5"):
        ledger.run(flow_world, written)
    found = {key: [row["step"] for row in rows] for key, rows in ledger.rows(flow_world).items()}
    expected: dict[str, list[int]] = {}
    for one in written:
        expected.setdefault(f"n{int(one.account[1:]) % 10}", []).append(one.step)
    assert found == expected


def test_what_is_left_of_duplicates_is_the_first_of_each_in_the_order_of_the_log(
    flow_world: FlowWorld,
) -> None:
    def once(events: DataFrame) -> DataFrame:
        halved = events.withColumn("pair", F.floor(F.col("step") / 2))
        return halved.dropDuplicates(["pair"]).select("account", "step")

    ledger = Ledger(once)
    written = [Step(number, f"a{number // 2 * 7 % 20}", NOON, []) for number in range(400)]
    with spark_conf(flow_world, shuffle__partitions="3"):
        ledger.run(flow_world, written, partitions=2, max_rows=150)
    found = {key: [row["step"] for row in rows] for key, rows in ledger.rows(flow_world).items()}
    # Even steps are in partition 0, odd ones in partition 1, which comes behind it within a batch. Later batches
    # bring duplicates only.
    assert all(sorted(rows) == sorted({step // 2 * 2 for step in rows}) for rows in found.values()), found
    assert found == by_account([one for one in written if one.step % 2 == 0])


def test_rows_that_are_made_of_one_record_are_in_the_order_of_its_list(flow_world: FlowWorld) -> None:
    def parts(events: DataFrame) -> DataFrame:
        halves = events.select("account", "step", F.explode("parts").alias("part"))
        return halves.union(events.select("account", "step", F.lit(0).cast("long"))).repartition(4, "part")

    ledger = Ledger(parts)
    written = steps(60, 5)
    ledger.run(flow_world, written)
    expected: dict[str, list[tuple[int, int]]] = {}
    for one in written:
        expected.setdefault(one.account, []).extend((one.step, part) for part in [*one.parts, 0])
    found = ledger.rows(flow_world)
    assert {key: [(row["step"], row["part"]) for row in rows] for key, rows in found.items()} == expected


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


def test_among_equals_max_by_takes_the_newest_record_and_min_by_the_oldest(flow_world: FlowWorld) -> None:
    def ends(events: DataFrame) -> DataFrame:
        return events.groupBy("account").agg(
            F.max_by("step", F.lit(1)).alias("newest"), (F.min_by("step", F.lit(1)) * 1).alias("oldest")
        )

    ledger = Ledger(ends)
    written = steps(300, 4)
    with spark_conf(flow_world, shuffle__partitions="3"):
        ledger.run(flow_world, written, max_rows=120)
    last = {key: (rows[-1]["oldest"], rows[-1]["newest"]) for key, rows in ledger.rows(flow_world).items()}
    assert last == {key: (numbers[0], numbers[-1]) for key, numbers in by_account(written).items()}


def _refusal(world: FlowWorld, function: Function, **options: Any) -> str:
    with pytest.raises(AppMistakes) as found:
        compile_app(world.spark, Ledger(function, **options).app)
    [mistake] = found.value.mistakes
    assert mistake.place is not None
    assert mistake.place.file == __file__
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
        pytest.param(_per_minute, "account", id="a window is left out"),
        pytest.param(_per_window("12 hours"), ["account", "day"], id="the day of half a day"),
        pytest.param(
            lambda events: events.groupBy("account", "step").agg(F.count("*").alias("n")),
            "account",
            id="a column is left out",
        ),
        pytest.param(
            lambda events: (
                events.groupBy(F.col("step").alias("n"), "account")
                .agg(F.count("*").alias("times"))
                .select(F.upper("account").alias("account"), "n", "times")
            ),
            ["account", "n"],
            id="two groups may have one key",
        ),
    ],
)
def test_an_aggregation_whose_key_is_not_all_that_it_groups_by_is_refused(
    flow_world: FlowWorld, function: Function, key: str | list[str]
) -> None:
    refused = _refusal(flow_world, function, key=key)
    assert "groups by" in refused
    assert "an arbitrary one" in refused


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
            id="a column that follows from another one",
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
def test_a_key_that_tells_every_group_apart_is_accepted(
    flow_world: FlowWorld, function: Function, key: str | list[str]
) -> None:
    compile_app(flow_world.spark, Ledger(function, key=key).app)


def test_a_view_whose_key_is_not_all_that_is_grouped_by_is_refused(flow_world: FlowWorld) -> None:
    ledger = Ledger(_per_minute, key=["account", "minute"])
    ledger.app.view("accounts", ledger.out, key="account")
    with pytest.raises(AppMistakes, match="groups by minute, which the key of view accounts"):
        compile_app(flow_world.spark, ledger.app)


def test_parts_that_were_added_up_apart_need_a_constant_in_their_key(flow_world: FlowWorld) -> None:
    def parts(events: DataFrame, kind: str) -> DataFrame:
        return (
            events.groupBy("account")
            .agg(F.count("*").alias("n"))
            .select("account", F.lit(kind).alias("kind"), "n")
        )

    def both(events: DataFrame) -> DataFrame:
        return parts(events, "all").union(parts(events.where("step > 3"), "some"))

    assert "a key may be in both" in _refusal(flow_world, both, key="account")
    compile_app(flow_world.spark, Ledger(both, key=["account", "kind"]).app)


def test_a_column_with_a_reserved_name_is_refused(flow_world: FlowWorld) -> None:
    def renamed(events: DataFrame) -> DataFrame:
        return events.select("account", F.col("step").alias("_headrace_at0"))

    assert "returns a column _headrace_at0, and names with _headrace_" in _refusal(flow_world, renamed)


def test_a_step_in_python_that_gives_any_rows_is_refused(flow_world: FlowWorld) -> None:
    def mapped(events: DataFrame) -> DataFrame:
        return events.mapInPandas(lambda frames: frames, "account string")

    assert "hides which record a row comes from (MapInPandas)" in _refusal(flow_world, mapped)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        pytest.param(
            lambda events, accounts: accounts.join(events, "account", "left").select("account"),
            "rows of a table that no event belongs to",
            id="all rows of a table",
        ),
        pytest.param(
            lambda events, accounts: accounts.join(events, "account", "left_semi"),
            "rows of a table that no event belongs to",
            id="rows of a table that some event belongs to",
        ),
        pytest.param(
            lambda events, accounts: events.select("account").union(accounts.select("account")),
            "rows of events and others",
            id="a table among events",
        ),
        pytest.param(lambda _, accounts: accounts, "do not come from its inputs", id="a table alone"),
    ],
)
def test_rows_that_no_record_of_the_input_leads_to_are_refused(
    flow_world: FlowWorld, function: Function, reason: str
) -> None:
    ledger = Ledger(function, table=True)
    spark = flow_world.spark
    records = spark.createDataFrame([("a", 0, 0)], "account string, partition int, offset long")
    accounts = spark.createDataFrame([("a", "A")], "account string, name string")
    with pytest.raises(FlowMistake, match=reason):
        trace(ledger.flow, [records.select("account", *coordinates(0)), accounts])
