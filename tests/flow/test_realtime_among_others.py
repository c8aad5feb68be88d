"""Real-time flows that share Spark with other flows and drivers: task slots, changes of latency, deleted input."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.app import App
from headrace.client.progress import current
from headrace.model.declarations import Flow
from headrace.model.progress import SOURCE_HEADER, Generation, encode, source_of
from tests.flow.realtime_apps import NOW, Measurement, app_with, position, served, transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_flow_in_real_time_reports_too_few_task_slots(spark: SparkSession) -> None:
    from headrace.flow.engine import task_slots as slots
    from headrace.flow.errors import SlotsTaken

    slots.occupy(spark, "one", 2)
    try:
        with pytest.raises(
            SlotsTaken, match=r"needs 2 Spark task slots.* of 4 slots, 1 are available"
        ) as caught:
            slots.occupy(spark, "two", 2)
        assert "local[5]" in caught.value.hint
        assert not caught.value.retriable
        slots.occupy(spark, "two", 1)
    finally:
        slots.release("one")
        slots.release("two")


def test_on_a_cluster_a_flow_in_real_time_waits_for_executors() -> None:
    from headrace.flow.engine.task_slots import expect_slots
    from headrace.flow.errors import SlotsTaken

    with pytest.raises(SlotsTaken, match="of 0 slots, 0 are available") as caught:
        expect_slots("fast", 3, 0, 0, local=False)
    assert caught.value.retriable
    assert "starts when Spark has 4" in caught.value.hint
    expect_slots("fast", 3, 0, 4, local=False)


def test_a_flow_needs_one_slot_per_partition_of_the_generation_that_it_reads(flow_world: FlowWorld) -> None:
    from headrace.flow.engine.task_slots import slots_for

    world, app = flow_world, App("counted")
    first = app.topic("counted-in", Measurement, key="sensor", partitions=1)
    between = app.topic("counted-between", key="sensor", partitions=1)
    out = app.topic("counted-out", key="sensor")
    slow = app.flow(reads=[first], writes=between, name="counted-slow")(lambda rows: rows)
    app.flow(reads=[between], writes=out, name="counted-fast", latency="realtime")(lambda rows: rows)
    assert slots_for(world.cluster, app, world.settings()) == 1
    world.cluster.ensure_topic(slow.progress_topic, 1)
    world.cluster.ensure_topic("counted-between.g2", 3)
    generation = Generation(
        "counted", slow.name, 2, "f", [], "counted-between.g2", "id", ["sensor"], [], "c", 0
    )
    producer = world.cluster.producer()
    producer.produce(slow.progress_topic, *reversed(encode(generation)))
    assert producer.flush(30) == 0
    assert slots_for(world.cluster, app, world.settings()) == 3


def test_a_flow_in_real_time_gets_its_slots_back_before_all_others(flow_world: FlowWorld) -> None:
    world = flow_world
    app, flow = app_with(lambda rows: rows.select("sensor", "number"), "first")
    context = world.spark.sparkContext

    def run_long_job() -> None:
        """Run tasks that wait for more than half a minute unless they are cancelled."""
        context.setJobGroup("hog", "a long job", interruptOnCancel=True)
        sleep = "java_method('java.lang.Thread', 'sleep', 250L)"
        with contextlib.suppress(Exception):
            world.spark.range(0, 500, 1, 500).selectExpr(sleep).write.format("noop").mode("append").save()

    with world.running(app) as run:
        world.write(flow.reads[0], [Measurement("s1", 1, NOW, [])])
        until(lambda: run.errors or served(world, app), "the first row", timeout_s=800)
        jobs = context.statusTracker()
        long = threading.Thread(target=run_long_job, daemon=True)
        long.start()
        try:
            until(lambda: jobs.getJobIdsForGroup("hog"), "the long job")
            state = run.runners[0].current
            assert state is not None
            # After two more real-time batches, the tasks that occupied the slots when the long job started have ended.
            for number in (2, 3):
                previous = state.last
                world.write(flow.reads[0], [Measurement("s1", number, NOW, [])])
                until(
                    lambda previous=previous: run.errors or state.last != previous,  # type: ignore[misc]
                    "a new progress record",
                    timeout_s=800,
                )
                until(
                    lambda number=number: run.errors or served(world, app)["s1"] == ("s1", number),  # type: ignore[misc]
                    "its row",
                    timeout_s=800,
                )
            assert long.is_alive(), "no task occupied the slots"
        finally:
            context.cancelJobGroup("hog")
            long.join(60)


def test_a_flow_changes_from_batches_to_real_time_and_back_with_its_view(
    flow_world: FlowWorld,
) -> None:
    """The input of the flow ends with a transaction marker, which is not a record."""
    from headrace.flow.compile.compiler import compile_app
    from headrace.flow.context import FlowContext, FlowOptions
    from headrace.flow.errors import FlowChanged
    from headrace.flow.generation_choice import begin_generation

    world = flow_world

    def declared(latency: Any) -> tuple[App, Flow]:
        return app_with(lambda rows: rows.select("sensor", "number"), "moves", latency)

    (slow, flow), (fast, _) = declared("batch"), declared("realtime")
    rows = {f"s{number}": (f"s{number}", number) for number in range(6)}

    def is_served(app: App, generation: int) -> bool:
        return served(world, app) == rows and position(world, app).generation == generation

    world.declare(slow)
    readings = [flow.reads[0].encode(Measurement(f"s{number}", number, NOW, [])) for number in range(6)]
    transaction(world, flow.reads[0].name, readings)
    with world.running(slow) as run:
        run.wait_until_followed()
        assert is_served(slow, 1)
    with (
        pytest.raises(
            FlowChanged,
            match=r"declared with latency='realtime', but the current generation 1 has latency='batch'",
        ),
        world.running(fast, follow=False) as run,
    ):
        until(lambda: run.errors, "an error that names the changed option")

    def replace_driver(run: RunningApp) -> None:
        # No more records arrive, but the new generation still reads everything that the old one had read.
        until(lambda: run.errors or is_served(fast, 2), "the view in real time", timeout_s=800)
        run.wait_until_followed()
        assert run.runners[0].lag() == 0
        # Another process starts a new generation while this one is idle.
        (compiled,), _ = compile_app(world.spark, slow)
        options = FlowOptions.of(world.settings())
        begin_generation(FlowContext(world.spark, world.cluster, slow, compiled, {}, options), "a test")
        until(lambda: run.runners[0].status.state == "stopped", "the replaced driver ends", timeout_s=240)

    with world.running(fast, rebuild=[flow.name]) as run:
        replace_driver(run)
        assert "has no generation 2" in run.notes[-1]
    with world.running(slow) as run:
        until(lambda: run.errors or is_served(slow, 3), "the view in batches", timeout_s=800)


# Flows that cannot continue report the reason


def test_a_flow_fails_if_its_next_record_was_deleted(flow_world: FlowWorld) -> None:
    from confluent_kafka import TopicPartition

    from headrace.flow.errors import InputDeleted

    world = flow_world
    app, flow = app_with(lambda rows: rows, "gone")
    topic = flow.reads[0].name

    def delete_input(run: RunningApp) -> None:
        # A flow that starts after the records were deleted has missed none of its input.
        until(lambda: current(world.cluster, flow.progress_topic), "the first generation record")
        transaction(world, topic, [(b"1", b"{}"), (b"2", b"{}")], commit=False)
        end = TopicPartition(topic, 0, world.cluster.ends(topic)[0])
        world.cluster.admin().delete_records([end])[end].result(30)
        until(lambda: run.errors, "an error about the deleted input", timeout_s=240)

    with (
        pytest.raises(InputDeleted, match="is at offset 0 of gone-readings/0, which starts at 3"),
        world.running(app, follow=False) as run,
    ):
        delete_input(run)


def test_a_real_time_progress_record_covers_at_most_max_bytes() -> None:
    from headrace.flow.context import FlowOptions
    from headrace.flow.engine.realtime_progress import BatchTotals, rows_per_progress_max

    options = FlowOptions("file:///nowhere", max_rows=1_000, max_bytes=10_000)
    assert rows_per_progress_max(BatchTotals(rows_in=50, bytes=50 * 500), options, 7) == 20
    assert rows_per_progress_max(BatchTotals(rows_in=50, bytes=50), options, 7) == 1_000
    assert rows_per_progress_max(BatchTotals(rows_in=2, bytes=200_000), options, 7) == 1
    assert rows_per_progress_max(None, options, 7) == 7


def test_followers_and_proofs_read_the_same_source_from_a_header(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from headrace.flow.realtime_rows import header_source

    cases: list[list[tuple[str, bytes | None]] | None] = [
        None,
        [],
        [("other", b"1/2")],
        [(SOURCE_HEADER, b"3/1042")],
        [("other", b""), (SOURCE_HEADER, b"0/0"), (SOURCE_HEADER, b"1/1")],
        [(SOURCE_HEADER, b"x/1"), (SOURCE_HEADER, b"1/1")],
        [(SOURCE_HEADER, b"1/-1")],
        [(SOURCE_HEADER, b"1/1\n")],
        [(SOURCE_HEADER, b"0/" + b"9" * 18)],
        [(SOURCE_HEADER, b"0/" + b"9" * 19)],
        [(SOURCE_HEADER, b"0/" + b"9" * 5_000)],
        [(SOURCE_HEADER, b"1234567890/1")],
        [(SOURCE_HEADER, "٣/٣".encode())],
        [(SOURCE_HEADER, b"\xff/1")],
        [(SOURCE_HEADER, None)],
    ]
    kind = "headers array<struct<key: string, value: binary>>"
    rows = spark.createDataFrame([(case,) for case in cases], kind).coalesce(1)
    found = [
        case["source"] for case in rows.select(header_source(F.col("headers")).alias("source")).collect()
    ]
    by_spark = [None if case["offset"] is None else tuple(case) for case in found]
    assert by_spark == [source_of(case) for case in cases]
    assert [case for case in by_spark if case] == [(3, 1042), (0, 0), (0, 10**18 - 1)]
