"""Flows in real time: which can be, what their rows say of themselves, and what is noted of them."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bench.faults.committed import committed
from headrace.app import App
from headrace.client.progress_log import batches, current
from headrace.model.flow import Flow
from headrace.model.source import reaches, source_of
from headrace.ops.verify import Verifier
from headrace.views.opening import file_of
from tests.flow.reading import headers
from tests.flow.realtime_apps import NOW, Reading, app_with, position, proofs, served
from tests.support.flows import FlowWorld, RunningApp
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# What can be


def _explode(rows: Any) -> Any:
    from pyspark.sql import functions as F

    return rows.withColumn("tag", F.explode("tags"))


def _sum(rows: Any) -> Any:
    from pyspark.sql import functions as F

    return (
        rows.groupBy("sensor", F.window("at", "1 minute")).agg(F.sum("number").alias("number")).drop("window")
    )


def _once(rows: Any) -> Any:
    return rows.dropDuplicatesWithinWatermark(["sensor"])


def _twice(rows: Any) -> Any:
    return rows.union(rows)


def _joined(rows: Any) -> Any:
    rooms = rows.sparkSession.createDataFrame([("s1", "kitchen")], "sensor string, name string")
    return rows.join(rooms, "sensor")


def _by_python(rows: Any) -> Any:
    from pyspark.sql import functions as F

    return rows.withColumn("number", F.udf(lambda one: one + 1, "long")("number"))


def _asking(rows: Any) -> Any:
    one = rows.sparkSession.range(1)
    return rows.where(one.where("id = 0").exists())


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_explode, "makes several rows of one (explode)"),
        (_sum, "it keeps state"),
        (_once, "it keeps state"),
        (_twice, "puts rows together"),
        (_joined, "it joins"),
        (_by_python, "it calls Python for its rows"),
        (_asking, "asks a query of its own"),
    ],
)
def test_what_cannot_run_in_real_time_is_refused_with_the_reason_and_a_way_out(
    spark: SparkSession, function: Callable[[Any], Any], why: str
) -> None:
    from headrace.flow.compiled import compile_flow
    from headrace.flow.mistakes import FlowMistake

    def compiled(latency: str) -> Any:
        app = App("rt")
        readings = app.topic("readings", Reading, key="sensor", time="at")
        declare = app.flow(
            reads=[readings],
            writes=app.topic("out", key="sensor"),
            name="fast",
            deterministic=True,
            latency=latency,  # type: ignore[arg-type]
        )
        assert readings.schema is not None
        return compile_flow(spark, declare(function), {"readings": readings.schema})

    with pytest.raises(FlowMistake) as caught:
        compiled("realtime")
    assert "flow fast cannot run in real time: " in str(caught.value)
    assert why in str(caught.value)
    assert "test_realtime.py:" in str(caught.value)
    assert caught.value.hint


def test_a_flow_that_changes_to_real_time_or_back_is_another(spark: SparkSession) -> None:
    from headrace.flow.compiling import compile_app

    told = set()
    for latency in ("batch", "realtime", "realtime"):
        (compiled,), _ = compile_app(
            spark, app_with(lambda rows: rows.where("number > 1"), latency=latency)[0]
        )
        told.add((latency, compiled.fingerprint))
    assert len(told) == len({one for _, one in told}) == 2


def _chain(rng: random.Random) -> Callable[[Any], Any]:
    """Steps of a user's, at random, of which none lets go of ``number``."""
    from pyspark.sql import functions as F

    def select(rows: DataFrame) -> DataFrame:
        others = [name for name in rows.columns if name != "number" and rng.random() < 0.7]
        return rows.select("number", *others)

    def alias(rows: DataFrame) -> DataFrame:
        return rows.alias("mine").select("mine.*")

    def added(rows: DataFrame) -> DataFrame:
        return rows.withColumn(f"more{rng.randrange(3)}", F.col("number") * rng.randrange(5))

    def renamed(rows: DataFrame) -> DataFrame:
        return rows.withColumnRenamed("number", "n").withColumn("number", F.col("n")).drop("n")

    def some(rows: DataFrame) -> DataFrame:
        return rows.where(F.col("number") % rng.randrange(2, 7) != 0)

    def filled(rows: DataFrame) -> DataFrame:
        return rows.fillna(7).hint("rebalance") if rng.random() < 0.01 else rows.fillna(7)

    def expressed(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("*", "number + 1 AS next", "next * 2 AS twice").drop("next", "twice")

    steps = [
        rng.choice([select, alias, added, renamed, some, filled, expressed])
        for _ in range(rng.randrange(3, 8))
    ]

    def function(rows: DataFrame) -> DataFrame:
        for step in steps:
            rows = step(rows)
        return rows

    return function


def test_a_row_keeps_its_source_through_any_chain_of_steps(spark: SparkSession) -> None:
    from functools import reduce

    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from headrace.flow.carrying import SOURCE, carried

    numbers = spark.range(50).selectExpr(
        "id AS number", "'s' || id AS sensor", "cast(null AS string) AS room"
    )
    rows = numbers.withColumn(SOURCE, F.col("number") * 3)
    rng = random.Random(5)
    made, kept = [], []
    for at in range(5):
        seed = rng.random()
        carrying = carried(app_with(_twice)[1], rows, _chain(random.Random(seed)))
        plain = _chain(random.Random(seed))(numbers)
        assert carrying.columns == [*plain.columns, SOURCE]
        made.append(carrying.select(F.lit(at).alias("at"), "number", SOURCE))
        kept.append(plain.select(F.lit(at).alias("at"), "number"))
    found = reduce(DataFrame.union, made).collect()
    assert all(one[SOURCE] == one["number"] * 3 for one in found)
    wanted = [(one["at"], one["number"]) for one in reduce(DataFrame.union, kept).collect()]
    assert sorted((one["at"], one["number"]) for one in found) == sorted(wanted)
    assert len({at for at, _ in wanted}) > 3


# What is written


def _warm(readings: Any) -> Any:
    from pyspark.sql import functions as F

    kept = readings.where("number % 5 <> 0").withColumn("double", F.col("number") * 2)
    # A row without a key has no place in the topic.
    sensor = F.when(F.col("room").eqNullSafe("nowhere"), None).otherwise(F.col("sensor"))
    return kept.select(
        sensor.alias("sensor"), "number", "double", (F.col("number") % 13 == 0).alias("_deleted")
    )


class Inputs:
    """What was sent, and what must follow from it; an oracle of its own."""

    def __init__(self, world: FlowWorld, flow: Flow) -> None:
        self._world, self._topic = world, flow.reads[0]
        self.rows: dict[str, tuple[Any, ...]] = {}
        self.records = [0, 0]
        self.derived: dict[tuple[int, int], str] = {}
        """The key that follows from each record of the input."""
        self.dead: list[tuple[int, int]] = []
        self.keyless = 0

    def send(self, numbers: range) -> None:
        for number in numbers:
            # A sensor has its readings in one partition, so that their order is that of its rows.
            partition = number % 2
            sensor = f"s{number % 8}"
            place = (partition, self.records[partition])
            self.records[partition] += 1
            value: Any = Reading(sensor, number, NOW - timedelta(days=number), [])
            if number % 17 == 3:
                value = (sensor.encode(), b"{broken")
                self.dead.append(place)
            elif number % 5 != 0 and number % 19 == 4:
                value = Reading(sensor, number, NOW, [], "nowhere")
                self.keyless += 1
            elif number % 5 != 0:
                self.derived[place] = sensor
                if number % 13 == 0:
                    self.rows.pop(sensor, None)
                else:
                    self.rows[sensor] = (sensor, number, number * 2)
            self._world.write(self._topic, [value], partition=partition)


def test_rows_are_seen_at_once_repeated_after_a_stop_counted_once_and_proven(flow_world: FlowWorld) -> None:
    world = flow_world
    app, flow = app_with(_warm, "warm")
    inputs = Inputs(world, flow)
    with world.running(app) as run:
        inputs.send(range(1, 60))
        until(lambda: run.errors or served(world, app) == inputs.rows, "rows in the view", timeout_s=800)
    # Whatever was noted until then is done; everything after it comes again.
    with world.running(app, max_rows=40) as run:
        inputs.send(range(60, 90))
        run.followed()
        until(lambda: run.errors or served(world, app) == inputs.rows, "all rows", timeout_s=800)
    reports = proofs(world, run)
    assert [(one.what, one.verdict, one.lines()) for one in reports if one.verdict != "proven"] == []
    # Of what comes behind the last row, a view knows nothing.
    last = {source: max(at for one, at in inputs.derived if one == source) for source in (0, 1)}
    assert reaches(position(world, app).sources) == {source: at + 1 for source, at in last.items()}
    reached = [at for source, at in inputs.dead if at <= last[source]]
    assert [(one.what, one.records, one.dead) for one in reports] == [
        ("view", sum(last.values()) + 2, len(reached)),
        ("flow", sum(inputs.records), len(inputs.dead)),
    ]
    # Every row is in the log, with its source; one that is there again says the same.
    log = list(committed(world.server.bootstrap, flow.writes.name))
    sources = {source_of(one.headers()): (one.key(), one.value()) for one in log}
    assert {place: (key or b"").decode() for place, (key, _) in sources.items()} == inputs.derived
    assert all(sources[source_of(one.headers())] == (one.key(), one.value()) for one in log)
    # And every dead letter once, with its place.
    letters = [headers(one) for one in committed(world.server.bootstrap, flow.dead_topic)]
    places = [
        (int(one["partition"]), int(one["offset"]))
        for one in letters
        if one["exception"] == "ValueDoesNotFit"
    ]
    assert sorted(places) == sorted(inputs.dead)
    assert [one["exception"] for one in letters].count("RowWithoutKey") == inputs.keyless
    progress = current(world.cluster, flow.progress_topic)
    assert progress is not None
    assert progress.last is not None
    assert progress.generation.latency == "realtime"
    totals = progress.last.totals
    assert (totals.rows_in, totals.rows_out, totals.late) == (sum(inputs.records), len(inputs.derived), 0)
    assert (totals.dead, totals.keyless) == (len(inputs.dead), inputs.keyless)
    known = list(batches(world.cluster, flow.progress_topic, 1))
    assert [one.batch for one in known] == list(range(len(known)))
    _expect_tampering_to_be_told(world, app, run)


def _expect_tampering_to_be_told(world: FlowWorld, app: App, run: RunningApp) -> None:
    path = file_of(app.views[0], app.name, world.home)
    assert path is not None
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE \"{app.views[0].name}\" SET double = double + 1 WHERE sensor = 's1'")
    where = (world.spark, world.cluster, run.app, world.settings())
    with Verifier(*where, run.compiled, run.schemas) as verifier:
        view = verifier.view(app.views[0])
    assert (view.verdict, view.different, view.missing, view.extra) == ("different", 1, 0, 0)
