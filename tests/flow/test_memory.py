"""The memory of a batch is limited in bytes, however many rows its function returns."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import Counter
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.client.progress import batches
from headrace.flow import batch_rows, rejected
from headrace.flow.batch_rows import OutputGuard
from headrace.flow.engine import micro_batch as running
from headrace.flow.rejected import Counts
from tests.flow.topic_contents import committed, headers


@dataclass(frozen=True)
class Measurement:
    reading: int
    sensor: str


class Station:
    def __init__(self, function: object = None) -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = App(f"station-{mark}")
        self.readings = self.app.topic(f"readings-{mark}", Measurement, key="reading")
        self.out = self.app.topic(f"out-{mark}", key="sensor")
        declared = self.app.flow(reads=[self.readings], writes=self.out, name=f"flow-{mark}", unbounded=True)
        self.flow = declared(function or (lambda readings: readings))


def readings(count: int) -> list[Measurement]:
    return [Measurement(number, f"s{number % 3}") for number in range(count)]


def _explode(rows: DataFrame) -> DataFrame:
    return rows.select("sensor", "reading", F.explode(F.sequence(F.lit(0), F.lit(99))).alias("part"))


def _explode_once(rows: DataFrame) -> DataFrame:
    return _explode(rows.dropDuplicates(["reading"]))


@pytest.mark.parametrize("function", [_explode, _explode_once], ids=["without state", "with state"])
def test_a_batch_too_large_for_memory_is_collected_in_pieces_in_order(
    flow_world: FlowWorld, function: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow = OutputGuard.allow
    monkeypatch.setattr(OutputGuard, "allow", lambda guard, _: allow(guard, 50_000))
    monkeypatch.setattr(batch_rows, "_PIECE_BYTES", 100_000)
    monkeypatch.setattr(running, "_MEMORY_FACTOR", 0)
    pieces: list[int] = []
    collected = batch_rows.arrow_tables

    def counting(frame: DataFrame) -> object:
        for table in collected(frame):
            pieces.append(table.num_rows)
            yield table

    monkeypatch.setattr(batch_rows, "arrow_tables", counting)
    station = Station(function)
    flow_world.declare(station.app)
    flow_world.write(station.readings, [*readings(150), (b"broken", b"{")])
    with flow_world.running(station.app, follow=False) as run:
        run.wait_until_derived()
        flow_world.write(station.readings, readings(150)[:3])
        run.wait_until_derived()
    found: dict[str, list[tuple[int, int]]] = {}
    for record in committed(flow_world.cluster.bootstrap, station.out.name):
        row = json.loads(record.value())
        found.setdefault(record.key().decode(), []).append((row["reading"], row["part"]))
    repeated = readings(150)[:3] if function is _explode else []
    assert found == {
        sensor: [
            (reading.reading, part)
            for reading in [*readings(150), *repeated]
            if reading.sensor == sensor
            for part in range(100)
        ]
        for sensor in ("s0", "s1", "s2")
    }
    assert len(pieces) > 3
    first, *_ = batches(flow_world.cluster, station.flow.progress_topic, 1)
    assert (first.rows_in, first.rows_out, first.dead) == (151, 15_000, 1)


def rows_of(spark: SparkSession, guard: OutputGuard, count: int, partitions: int) -> DataFrame:
    """Create rows of about 1 kB, which the memory guard counts."""
    value = F.rpad(F.col("id").cast("string"), 1_000, "x")
    rows = spark.range(0, count, 1, partitions).select(
        F.col("id").cast("string").alias("key"), value.alias("value")
    )
    return rows.select("key", guard.column(F.col("key"), F.col("value")).alias("value"))


def test_the_tasks_of_a_batch_share_its_limit(spark: SparkSession) -> None:
    guard = OutputGuard(spark)
    rows = rows_of(spark, guard, 400, 40)
    for bytes_max, is_spilled in ((4_000_000, False), (200_000, True)):
        collector = batch_rows.RowCollector(guard, bytes_max, ties=False)
        with contextlib.closing(collector.collect(rows, 40)) as collected:
            assert (collected.count, collected.is_spilled) == (400, is_spilled)


def test_large_batches_of_an_aggregation_arrive_in_pieces(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_rows, "_PIECE_BYTES", 40_000)
    guard = OutputGuard(spark)
    collector = batch_rows.RowCollector(guard, 100_000, ties=False)
    with contextlib.closing(collector.collect(rows_of(spark, guard, 400, 2), 2)) as collected:
        pieces = list(collected.pieces())
    keys = [key for piece in pieces for key in piece.column("key").to_pylist()]
    assert sorted(keys, key=int) == [str(number) for number in range(400)]
    assert max(piece.num_rows for piece in pieces) < 100


def test_many_dead_and_late_records_are_read_in_pieces_and_written_once(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejected, "_PIECE_BYTES", 4_000)
    station = Station()
    flow_world.declare(station.app)
    poison = [(b"k%d" % number, b'{"reading":"%d"}' % number) for number in range(700)]
    flow_world.write(station.readings, [*readings(50), *poison, *readings(50)])
    with flow_world.running(station.app, follow=False) as run:
        run.wait_until_derived()
    letters = committed(flow_world.cluster.bootstrap, station.flow.dead_topic)
    assert Counter((letter.key(), letter.value()) for letter in letters) == Counter(poison)
    assert [int(headers(letter)["offset"]) for letter in letters] == list(range(50, 750))
    (batch,) = batches(flow_world.cluster, station.flow.progress_topic, 1)
    assert (batch.rows_in, batch.rows_out, batch.dead) == (800, 100, 700)


def test_a_batch_with_wrong_counts_is_counted_again_before_its_commit(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    if_plausible = Counts.if_plausible.__func__  # type: ignore[attr-defined]

    def doubled(kind: type[Counts], tallies: dict[str, int], offsets: int) -> Counts | None:
        """Simulates a lost executor, after which Spark reads the input of a compacted topic twice."""
        return if_plausible(
            kind, {**tallies, "dead": 2 * tallies["dead"], "rows": 2 * tallies["rows"]}, 2 * offsets
        )

    monkeypatch.setattr(Counts, "if_plausible", classmethod(doubled))
    station = Station()
    flow_world.declare(station.app)
    flow_world.write(station.readings, [*readings(5), (b"broken", b"{")])
    with flow_world.running(station.app, follow=False) as run:
        run.wait_until_derived()
    (batch,) = batches(flow_world.cluster, station.flow.progress_topic, 1)
    assert (batch.rows_in, batch.rows_out, batch.dead) == (6, 5, 1)
    assert len(committed(flow_world.cluster.bootstrap, station.out.name)) == 5
    assert len(committed(flow_world.cluster.bootstrap, station.flow.dead_topic)) == 1
