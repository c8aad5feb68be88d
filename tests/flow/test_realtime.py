"""Real-time flows: which functions can run in real time, the sources of their rows, and their progress."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from faults.committed_records import committed
from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.client.progress import batches, current
from headrace.model.declarations import Flow
from headrace.model.progress import source_ends, source_of
from headrace.ops.verify.verifier import Verifier
from headrace.stores.registry import file_of
from tests.flow.realtime_apps import NOW, Measurement, app_with, position, proofs, served
from tests.flow.topic_contents import headers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Functions that can run in real time


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

    return rows.withColumn("number", F.udf(lambda number: number + 1, "long")("number"))


def _with_subquery(rows: Any) -> Any:
    single = rows.sparkSession.range(1)
    return rows.where(single.where("id = 0").exists())


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_explode, "returns several rows for one record (explode)"),
        (_sum, "it has state"),
        (_once, "it has state"),
        (_twice, "combines rows"),
        (_joined, "it joins"),
        (_by_python, "it uses a Python function"),
        (_with_subquery, "runs a subquery"),
    ],
)
def test_a_function_that_cannot_run_in_real_time_is_refused_with_a_hint(
    spark: SparkSession, function: Callable[[Any], Any], why: str
) -> None:
    from headrace.flow.compile.compiler import compile_flow
    from headrace.flow.compile.mistakes import FlowMistake

    def compiled(latency: str) -> Any:
        app = App("rt")
        readings = app.topic("readings", Measurement, key="sensor", time="at")
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


def test_a_change_of_latency_changes_the_fingerprint(spark: SparkSession) -> None:
    from headrace.flow.compile.compiler import compile_app

    fingerprints = set()
    for latency in ("batch", "realtime", "realtime"):
        (compiled,), _ = compile_app(
            spark, app_with(lambda rows: rows.where("number > 1"), latency=latency)[0]
        )
        fingerprints.add((latency, compiled.fingerprint))
    assert len(fingerprints) == len({fingerprint for _, fingerprint in fingerprints}) == 2


def _chain(rng: random.Random) -> Callable[[Any], Any]:
    """Random steps of a function; every step keeps the column ``number``."""
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

    from headrace.flow.compile.lineage import coordinates, trace

    numbers = spark.range(50).selectExpr(
        "id AS number", "'s' || id AS sensor", "cast(null AS string) AS room"
    )
    placed = numbers.withColumns({"partition": F.lit(7), "offset": F.col("number") * 3})
    rows = placed.select("number", "sensor", "room", *coordinates(0))
    rng = random.Random(5)
    steps, kept = [], []
    for at in range(5):
        seed = rng.random()
        traced = trace(app_with(_chain(random.Random(seed)))[1], [rows])
        plain = _chain(random.Random(seed))(numbers)
        assert traced.columns == [*plain.columns, "_headrace_at0", "_headrace_at1"]
        steps.append(traced.select(F.lit(at).alias("at"), "number", "_headrace_at0", "_headrace_at1"))
        kept.append(plain.select(F.lit(at).alias("at"), "number"))
    found = reduce(DataFrame.union, steps).collect()
    assert all((row[2], row[3]) == (7, row["number"] * 3) for row in found)
    wanted = [(row["at"], row["number"]) for row in reduce(DataFrame.union, kept).collect()]
    assert sorted((row["at"], row["number"]) for row in found) == sorted(wanted)
    assert len({at for at, _ in wanted}) > 3


# Rows in the topic


def _warm(readings: Any) -> Any:
    from pyspark.sql import functions as F

    kept = readings.where("number % 5 <> 0").withColumn("double", F.col("number") * 2)
    # A row without a key is not written to the topic.
    sensor = F.when(F.col("room").eqNullSafe("nowhere"), None).otherwise(F.col("sensor"))
    return kept.select(
        sensor.alias("sensor"), "number", "double", (F.col("number") % 13 == 0).alias("_deleted")
    )


class Inputs:
    """The sent records and the expected rows: an independent oracle."""

    def __init__(self, world: FlowWorld, flow: Flow) -> None:
        self._world, self._topic = world, flow.reads[0]
        self.rows: dict[str, tuple[Any, ...]] = {}
        self.records = [0, 0]
        self.derived: dict[tuple[int, int], str] = {}
        """The expected key of each input record."""
        self.dead: list[tuple[int, int]] = []
        self.keyless = 0

    def send(self, numbers: range) -> None:
        for number in numbers:
            # All readings of a sensor are in one partition, so that its rows are in the order of the readings.
            partition = number % 2
            sensor = f"s{number % 8}"
            source = (partition, self.records[partition])
            self.records[partition] += 1
            value: Any = Measurement(sensor, number, NOW - timedelta(days=number), [])
            if number % 17 == 3:
                value = (sensor.encode(), b"{broken")
                self.dead.append(source)
            elif number % 5 != 0 and number % 19 == 4:
                value = Measurement(sensor, number, NOW, [], "nowhere")
                self.keyless += 1
            elif number % 5 != 0:
                self.derived[source] = sensor
                if number % 13 == 0:
                    self.rows.pop(sensor, None)
                else:
                    self.rows[sensor] = (sensor, number, number * 2)
            self._world.write(self._topic, [value], partition=partition)


def test_rows_in_real_time_are_visible_at_once_repeated_after_a_stop_and_proven(
    flow_world: FlowWorld,
) -> None:
    world = flow_world
    app, flow = app_with(_warm, "warm")
    inputs = Inputs(world, flow)
    with world.running(app) as run:
        inputs.send(range(1, 60))
        until(lambda: run.errors or served(world, app) == inputs.rows, "rows in the view", timeout_s=800)
    # Records up to the last progress record are done; all later records are processed again.
    with world.running(app, max_rows=40) as run:
        inputs.send(range(60, 90))
        run.wait_until_followed()
        until(lambda: run.errors or served(world, app) == inputs.rows, "all rows", timeout_s=800)
    reports = proofs(world, run)
    assert [
        (report.what, report.verdict, report.lines()) for report in reports if report.verdict != "proven"
    ] == []
    # A view does not know about input records after the last row.
    last = {
        source: max(offset for partition, offset in inputs.derived if partition == source)
        for source in (0, 1)
    }
    assert source_ends(position(world, app).sources) == {
        source: offset + 1 for source, offset in last.items()
    }
    dead_before_last = [offset for source, offset in inputs.dead if offset <= last[source]]
    assert [(report.what, report.records, report.dead) for report in reports] == [
        ("view", sum(last.values()) + 2, len(dead_before_last)),
        ("flow", sum(inputs.records), len(inputs.dead)),
    ]
    # The log has every row with its source; a repeated row has the same key and value.
    log = list(committed(world.server.bootstrap, flow.writes.name))
    sources = {source_of(record.headers()): (record.key(), record.value()) for record in log}
    assert {coordinates: (key or b"").decode() for coordinates, (key, _) in sources.items()} == inputs.derived
    assert all(sources[source_of(record.headers())] == (record.key(), record.value()) for record in log)
    # The log has every dead letter once, with its coordinates.
    letters = [headers(letter) for letter in committed(world.server.bootstrap, flow.dead_topic)]
    dead = [
        (int(letter["partition"]), int(letter["offset"]))
        for letter in letters
        if letter["exception"] == "ValueDoesNotFit"
    ]
    assert sorted(dead) == sorted(inputs.dead)
    assert [letter["exception"] for letter in letters].count("RowWithoutKey") == inputs.keyless
    progress = current(world.cluster, flow.progress_topic)
    assert progress is not None
    assert progress.last is not None
    assert progress.generation.latency == "realtime"
    totals = progress.last.totals
    assert (totals.rows_in, totals.rows_out, totals.late) == (sum(inputs.records), len(inputs.derived), 0)
    assert (totals.dead, totals.keyless) == (len(inputs.dead), inputs.keyless)
    recorded = list(batches(world.cluster, flow.progress_topic, 1))
    assert [batch.batch for batch in recorded] == list(range(len(recorded)))
    _expect_tampering_to_be_found(world, app, run)


def _expect_tampering_to_be_found(world: FlowWorld, app: App, run: RunningApp) -> None:
    path = file_of(app.views[0], app.name, world.home)
    assert path is not None
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE \"{app.views[0].name}\" SET double = double + 1 WHERE sensor = 's1'")
    where = (world.spark, world.cluster, run.app, world.settings())
    with Verifier(*where, run.compiled, run.schemas) as verifier:
        view = verifier.view(app.views[0])
    assert (view.verdict, view.different, view.missing, view.extra) == ("different", 1, 0, 0)
