"""Flows in real time among others: slots, changes of latency, other drivers, and what must not go by in silence."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from headrace.app import App
from headrace.client.progress_log import current
from headrace.model.flow import Flow
from headrace.model.progress import Generation, encode
from headrace.model.source import HEADER, source_of
from tests.flow.realtime_apps import NOW, Reading, app_with, position, served, transaction
from tests.support.flows import FlowWorld, RunningApp
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_flow_in_real_time_says_when_there_are_too_few_slots_for_it(spark: SparkSession) -> None:
    from headrace.flow import slots
    from headrace.flow.errors import SlotsTaken

    slots.hold(spark, "one", 2)
    try:
        with pytest.raises(SlotsTaken, match=r"2 partitions in real time.* of 4 it can have 1") as caught:
            slots.hold(spark, "two", 2)
        assert "local[5]" in caught.value.hint
        assert not caught.value.retriable
        slots.hold(spark, "two", 1)
    finally:
        slots.free("one")
        slots.free("two")


def test_on_a_cluster_it_waits_for_executors_which_come_after_the_session() -> None:
    from headrace.flow.errors import SlotsTaken
    from headrace.flow.slots import expect_slots

    with pytest.raises(SlotsTaken, match="of 0 it can have 0") as caught:
        expect_slots("fast", 3, 0, 0, local=False)
    assert caught.value.retriable
    assert "begins when Spark has 4" in caught.value.hint
    expect_slots("fast", 3, 0, 4, local=False)


def test_the_slots_of_a_flow_are_those_of_the_generation_that_it_reads(flow_world: FlowWorld) -> None:
    from headrace.flow.slots import slots_for

    world, app = flow_world, App("counted")
    first = app.topic("counted-in", Reading, key="sensor", partitions=1)
    between = app.topic("counted-between", key="sensor", partitions=1)
    out = app.topic("counted-out", key="sensor")
    slow = app.flow(reads=[first], writes=between, name="counted-slow")(lambda rows: rows)
    app.flow(reads=[between], writes=out, name="counted-fast", latency="realtime")(lambda rows: rows)
    assert slots_for(world.cluster, app, world.settings()) == 1
    world.cluster.ensure_topic(slow.progress_topic, 1)
    world.cluster.ensure_topic("counted-between.g2", 3)
    begun = Generation("counted", slow.name, 2, "f", [], "counted-between.g2", "id", ["sensor"], [], "c", 0)
    producer = world.cluster.producer()
    producer.produce(slow.progress_topic, *reversed(encode(begun)))
    assert producer.flush(30) == 0
    assert slots_for(world.cluster, app, world.settings()) == 3


def test_the_next_stretch_has_its_slots_back_before_all_that_waits_for_one(flow_world: FlowWorld) -> None:
    world = flow_world
    app, flow = app_with(lambda rows: rows.select("sensor", "number"), "first")
    context = world.spark.sparkContext

    def hog() -> None:
        """Tasks that wait in line for half a minute and more, unless they are let go."""
        context.setJobGroup("hog", "a long job", interruptOnCancel=True)
        sleep = "java_method('java.lang.Thread', 'sleep', 250L)"
        with contextlib.suppress(Exception):
            world.spark.range(0, 500, 1, 500).selectExpr(sleep).write.format("noop").mode("append").save()

    with world.running(app) as run:
        world.write(flow.reads[0], [Reading("s1", 1, NOW, [])])
        until(lambda: run.errors or served(world, app), "the first row", timeout_s=800)
        jobs = context.statusTracker()
        long = threading.Thread(target=hog, daemon=True)
        long.start()
        try:
            until(lambda: jobs.getJobIdsForGroup("hog"), "the long job")
            last = run.runners[0].current
            assert last is not None
            # Two stretches on, whatever held the slots when the long job came holds them no more.
            for number in (2, 3):
                noted = last.last
                world.write(flow.reads[0], [Reading("s1", number, NOW, [])])
                until(lambda noted=noted: run.errors or last.last != noted, "a note", timeout_s=800)  # type: ignore[misc]
                until(
                    lambda number=number: run.errors or served(world, app)["s1"] == ("s1", number),  # type: ignore[misc]
                    "its row",
                    timeout_s=800,
                )
            assert long.is_alive(), "there was nothing to wait behind"
        finally:
            context.cancelJobGroup("hog")
            long.join(60)


def test_a_flow_moves_from_batches_to_real_time_and_back_with_its_view_also_behind_a_transaction(
    flow_world: FlowWorld,
) -> None:
    """Where its input ends with the end of a transaction, which is no record."""
    from headrace.flow.compiling import compile_app
    from headrace.flow.errors import FlowChanged, FlowFenced
    from headrace.flow.opening import open_flow
    from headrace.flow.options import FlowOptions
    from headrace.flow.ownership import Ownership
    from headrace.flow.runner import transactional_id
    from headrace.flow.writer import Writer

    world = flow_world

    def declared(latency: Any) -> tuple[App, Flow]:
        return app_with(lambda rows: rows.select("sensor", "number"), "moves", latency)

    (slow, flow), (fast, _) = declared("batch"), declared("realtime")
    rows = {f"s{one}": (f"s{one}", one) for one in range(6)}

    def shown(app: App, generation: int) -> bool:
        return served(world, app) == rows and position(world, app).generation == generation

    world.declare(slow)
    readings = [flow.reads[0].encode(Reading(f"s{one}", one, NOW, [])) for one in range(6)]
    transaction(world, flow.reads[0].name, readings)
    with world.running(slow) as run:
        run.followed()
        assert shown(slow, 1)
    with (
        pytest.raises(FlowChanged, match=r"declared with latency='realtime', and generation 1.*'batch'"),
        world.running(fast, follow=False) as run,
    ):
        until(lambda: run.errors, "what was changed")

    def replaced(run: RunningApp) -> None:
        # Nothing more comes, and still the new generation has read all that the old one had.
        until(lambda: run.errors or shown(fast, 2), "the view in real time", timeout_s=800)
        run.followed()
        assert run.runners[0].lag() == 0
        # Somebody else begins it anew while it has nothing to do.
        (compiled,), _ = compile_app(world.spark, slow)
        writer = Writer(world.cluster, flow.name, transactional_id(flow))
        options = FlowOptions.of(world.settings())
        ownership = Ownership(world.cluster, flow, options.transaction_timeout_ms)
        open_flow(world.spark, world.cluster, slow, compiled, writer, options, ownership, rebuild="asked for")
        writer.close()
        until(lambda: run.errors, "the one that was replaced is told", timeout_s=240)

    with pytest.raises(FlowFenced), world.running(fast, rebuild=[flow.name]) as run:
        replaced(run)
    with world.running(slow) as run:
        until(lambda: run.errors or shown(slow, 3), "the view in batches", timeout_s=800)


# What stands still must not do so in silence


def test_a_first_record_that_is_gone_is_told_and_not_waited_for(flow_world: FlowWorld) -> None:
    from confluent_kafka import TopicPartition

    from headrace.flow.errors import InputGone

    world = flow_world
    app, flow = app_with(lambda rows: rows, "gone")
    topic = flow.reads[0].name

    def emptied(run: RunningApp) -> None:
        # One that begins after the records are gone misses nothing.
        until(lambda: current(world.cluster, flow.progress_topic), "that it began at 0")
        transaction(world, topic, [(b"1", b"{}"), (b"2", b"{}")], commit=False)
        place = TopicPartition(topic, 0, world.cluster.ends(topic)[0])
        world.cluster.admin().delete_records([place])[place].result(30)
        until(lambda: run.errors, "that it is told", timeout_s=240)

    with (
        pytest.raises(InputGone, match="is at offset 0 of gone-readings/0, which begins at 3"),
        world.running(app, follow=False) as run,
    ):
        emptied(run)


def test_notes_hold_no_more_than_the_bytes_that_a_batch_may_have() -> None:
    from headrace.flow.options import FlowOptions
    from headrace.flow.realtime_notes import Passed, rows_at_once

    options = FlowOptions("file:///nowhere", max_rows=1_000, max_bytes=10_000)
    assert rows_at_once(Passed(rows_in=50, bytes=50 * 500), options, 7) == 20
    assert rows_at_once(Passed(rows_in=50, bytes=50), options, 7) == 1_000
    assert rows_at_once(Passed(rows_in=2, bytes=200_000), options, 7) == 1
    assert rows_at_once(None, options, 7) == 7


def test_followers_and_proofs_read_the_same_source_from_a_header(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from headrace.flow.sourced import told_source

    cases: list[list[tuple[str, bytes | None]] | None] = [
        None,
        [],
        [("other", b"1/2")],
        [(HEADER, b"3/1042")],
        [("other", b""), (HEADER, b"0/0"), (HEADER, b"1/1")],
        [(HEADER, b"x/1"), (HEADER, b"1/1")],
        [(HEADER, b"1/-1")],
        [(HEADER, b"1/1\n")],
        [(HEADER, b"0/" + b"9" * 18)],
        [(HEADER, b"0/" + b"9" * 19)],
        [(HEADER, b"0/" + b"9" * 5_000)],
        [(HEADER, b"1234567890/1")],
        [(HEADER, "٣/٣".encode())],
        [(HEADER, b"\xff/1")],
        [(HEADER, None)],
    ]
    kind = "headers array<struct<key: string, value: binary>>"
    rows = spark.createDataFrame([(one,) for one in cases], kind).coalesce(1)
    found = [one["source"] for one in rows.select(told_source(F.col("headers")).alias("source")).collect()]
    by_spark = [None if one["offset"] is None else tuple(one) for one in found]
    assert by_spark == [source_of(one) for one in cases]
    assert [one for one in by_spark if one] == [(3, 1042), (0, 0), (0, 10**18 - 1)]
