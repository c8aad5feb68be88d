"""The shapes of plans over streams, and their counts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from faults.wait import until
from headrace.app import App
from tests.flow.test_flows import all_batches, expect_contiguous
from tests.flow.topic_contents import committed, values

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True)
class Event:
    event: str
    place: str
    at: datetime


@dataclass(frozen=True)
class Sided:
    event: str
    side: Side
    places: list[str]


def event(number: int, place: str = "a", after_s: int = 0) -> Event:
    return Event(f"e{number}", place, NOON + timedelta(seconds=after_s or number))


def test_streams_are_joined_and_counted_while_one_of_them_is_silent(flow_world: FlowWorld) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"shapes-{mark}")
    events = app.topic(f"events-{mark}", Event, key="event", time="at", late=timedelta(seconds=1))
    others = app.topic(f"others-{mark}", Event, key="event", time="at", late=timedelta(seconds=1))
    both = app.topic(f"both-{mark}", key="event")
    pairs = app.topic(f"pairs-{mark}", key="event")
    twice = app.topic(f"twice-{mark}", Sided, key="event")

    @app.flow(reads=[events, others], writes=both, name=f"unite-{mark}")
    def unite(events: DataFrame, others: DataFrame) -> DataFrame:
        return events.unionByName(others)

    @app.flow(reads=[events, others], writes=pairs, name=f"pair-{mark}", unbounded=True)
    def pair(events: DataFrame, others: DataFrame) -> DataFrame:
        near = "other.at BETWEEN one.at - INTERVAL 5 SECONDS AND one.at + INTERVAL 5 SECONDS"
        joined = events.alias("one").join(
            others.alias("other"), F.expr(f"one.place = other.place AND {near}"), "left_outer"
        )
        return joined.select("one.event", F.col("other.event").alias("other"))

    @app.flow(reads=[events], writes=twice, name=f"twice-{mark}")
    def use_twice(events: DataFrame) -> DataFrame:
        left = events.where("place = 'a'").select("event", F.lit("left").alias("side"))
        right = events.where("place = 'b'").select("event", F.lit("right").alias("side"))
        return left.unionByName(right).withColumn("places", F.split(F.lit("a,b"), ","))

    bootstrap = flow_world.cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    may_grow = NewTopic(events.name, 1, config={"headrace.partitions.force": "true"})
    admin.create_topics([may_grow])[events.name].result(30)
    flow_world.declare(app)
    flow_world.write(events, [event(1), event(2, "b"), (b"bad", b"{")])
    with flow_world.running(app, follow=False) as run:
        run.wait_until_derived()
        flow_world.write(others, [event(10, after_s=2)])
        run.wait_until_derived()
        admin.create_partitions([NewPartitions(events.name, 2)])[events.name].result(30)
        flow_world.write(events, [event(3, after_s=100)], partition=1)
        flow_world.write(others, [event(11, "z", after_s=100)])
    # After a restart too: a query that was planned with one partition continues with two.
    with flow_world.running(app, follow=False) as run:
        run.wait_until_derived()
        flow_world.write(events, [event(4, after_s=200)])
        flow_world.write(others, [event(12, "z", after_s=200)])
        run.wait_until_derived()
        # e2 has no match, which is certain once both partitions have passed it.
        until(
            lambda: any(row["event"] == "e2" for row in values(bootstrap, pairs.name)), "e2 without a match"
        )
    united = [row["event"] for row in values(bootstrap, both.name)]
    assert sorted(united) == ["e1", "e10", "e11", "e12", "e2", "e3", "e4"]
    paired = {row["event"]: row["other"] for row in values(bootstrap, pairs.name)}
    assert paired["e1"] == "e10"
    assert paired["e2"] is None
    sided = [(row["event"], row["side"]) for row in values(bootstrap, twice.name)]
    assert sorted(sided) == [("e1", "left"), ("e2", "right"), ("e3", "left"), ("e4", "left")]
    for flow, rows_in in ((unite, 8), (pair, 8), (use_twice, 5)):
        batches = all_batches(flow_world, flow)
        assert (batches[-1].totals.rows_in, batches[-1].totals.dead) == (rows_in, 1), flow.name
        assert len(committed(bootstrap, flow.dead_topic)) == 1, flow.name
        expect_contiguous(batches)
