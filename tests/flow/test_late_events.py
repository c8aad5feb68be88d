"""Late events are a property of the topic: all flows, rebuilds and proofs find the same ones, whatever the batches."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld, RunningApp
from headrace.app import App
from headrace.client.progress import batches, current
from headrace.errors import HeadraceError
from headrace.flow import rejected
from headrace.flow.lateness import WatermarkPolicy
from headrace.model.declarations import Flow
from headrace.model.errors import AppMistakes
from headrace.model.rejection import Reason
from headrace.ops.verify.report import Report
from headrace.testing.clock import DrivenClock
from tests.flow.topic_contents import committed, headers
from tests.verify.planted_faults import verifier

LATE = timedelta(seconds=20)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PARTITIONS = 3
Event = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class Ride:
    ride: str
    place: str
    at: datetime


class Rides:
    """A topic of rides, and flows with each treatment of late events."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"rides-{mark}")
        self.rides = app.topic(f"rides-{mark}", Ride, key="ride", time="at", late=LATE, partitions=PARTITIONS)
        self.flows: dict[str, Flow] = {}
        for mode in ("drop", "side"):
            self.flows[mode] = app.flow(
                reads=[self.rides],
                writes=app.topic(f"{mode}-{mark}", key="ride"),
                name=f"{mode}-{mark}",
                late=mode,  # type: ignore[arg-type]
            )(lambda rides: rides)

        @app.flow(
            reads=[self.rides],
            writes=app.topic(f"counts-{mark}", key=["place", "minute"]),
            name=f"count-{mark}",
        )
        def count(rides: DataFrame) -> DataFrame:
            counted = rides.groupBy("place", F.window("at", "1 minute").alias("window")).count()
            return counted.select("place", F.col("window.start").alias("minute"), "count")

        self.flows["count"] = count
        self.sent: dict[Event, datetime | None] = {}
        """The time of each event; None if it is invalid."""

    def write(self, world: FlowWorld, rng: random.Random, count: int, begin_s: float) -> None:
        """Write events of which some are late. Partition 2 is five minutes behind the others, and not late."""
        for _ in range(count):
            partition = rng.randrange(PARTITIONS)
            begin_s += rng.uniform(0, 4)
            at = NOON + timedelta(seconds=begin_s - rng.choice((0, 0, 15, 25, 300)) - 300 * (partition == 2))
            offset = sum(event[0] == partition for event in self.sent)
            is_valid = rng.random() > 0.1
            ride = Ride(f"{partition}/{offset}", f"p{rng.randrange(2)}", at)
            world.write(self.rides, [ride if is_valid else (b"invalid", b"{")], partition=partition)
            self.sent[partition, offset] = at if is_valid else None

    def late(self) -> set[Event]:
        late: set[Event] = set()
        newest: dict[int, datetime] = {}
        for (partition, offset), at in sorted(self.sent.items()):
            if at is not None:
                known = newest.setdefault(partition, at)
                if at < known - LATE:
                    late.add((partition, offset))
                newest[partition] = max(known, at)
        return late


def noted(world: FlowWorld, flow: Flow, generation: int = 1) -> set[Event]:
    """The late events that the flow recorded. Each must be recorded once."""
    notes = []
    for record in committed(world.cluster.bootstrap, flow.late_topic):
        note = json.loads(dict(record.headers() or ()).get("__headrace.late") or record.value() or b"")
        if note["generation"] == generation:
            notes.append((note["partition"], note["offset"]))
    assert len(notes) == len(set(notes))
    return set(notes)


def expect_all_counted(world: FlowWorld, rides: Rides, late: set[Event]) -> None:
    """Each record is counted, late or dead, in every flow."""
    invalid = {event for event, at in rides.sent.items() if at is None}
    counted = sorted(f"{number}/{offset}" for number, offset in rides.sent.keys() - late - invalid)
    bootstrap = world.cluster.bootstrap
    for mode in ("drop", "side"):
        written = committed(bootstrap, rides.flows[mode].writes.name)
        assert sorted((record.key() or b"").decode() for record in written) == counted
    windows = Counter(
        (at.replace(second=0), event)
        for event, at in rides.sent.items()
        if at is not None and event not in late
    )
    last: dict[bytes, int] = {}
    for record in committed(bootstrap, rides.flows["count"].writes.name):
        last[record.key() or b""] = json.loads(record.value() or b"")["count"]
    assert sum(last.values()) == windows.total()
    for flow in rides.flows.values():
        totals = [*batches(world.cluster, flow.progress_topic, 1)][-1].totals
        assert (totals.rows_in, totals.late, totals.dead) == (len(rides.sent), len(late), len(invalid))


def expect_proven(run: RunningApp) -> list[Report]:
    with verifier(run) as verification:
        reports = [verification.flow(flow) for flow in run.app.flows]
    for report in reports:
        assert report.verdict == "proven", report.lines()
    return reports


def test_all_flows_rebuilds_and_proofs_find_the_same_late_events(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The rejected records of a batch are read again in pieces of a few records.
    monkeypatch.setattr(rejected, "_PIECE_BYTES", 300)
    rng, rides = random.Random(3), Rides()
    flow_world.declare(rides.app)
    rides.write(flow_world, rng, 40, 0)
    with flow_world.running(rides.app, max_rows=9, follow=False) as run:
        run.wait_until_derived()
    with flow_world.running(rides.app, max_rows=40, follow=False) as run:
        rides.write(flow_world, rng, 50, 100)
        run.wait_until_derived()
        late = rides.late()
        assert len(late) > 10
        assert [noted(flow_world, flow) for flow in rides.flows.values()] == [late] * 3
        expect_all_counted(flow_world, rides, late)
        reports = expect_proven(run)
        assert {report.late for report in reports} == {len(late)}

    # Retention deletes the first records, in the middle of a batch. A rebuild decides as before.
    first = {0: 7, 1: 4, 2: 8}
    delete_before(flow_world, rides, first)
    names = [flow.name for flow in rides.flows.values()]
    with flow_world.running(rides.app, max_rows=16, follow=False, rebuild=names) as run:
        run.wait_until_derived()
        left = {(number, offset) for number, offset in late if offset >= first[number]}
        assert left != late
        assert [noted(flow_world, flow, 2) for flow in rides.flows.values()] == [left] * 3
        expect_proven(run)
        rides.write(flow_world, rng, 50, 300)
        run.wait_until_derived()

    # Only the second generation has read the records of which it now deletes some.
    ends = {
        number: 1 + max(offset for partition, offset in rides.sent if partition == number) for number in first
    }
    first = {number: end - 6 for number, end in ends.items()}
    delete_before(flow_world, rides, first)
    with flow_world.running(rides.app, max_rows=40, follow=False, rebuild=names) as run:
        run.wait_until_derived()
        left = {(number, offset) for number, offset in rides.late() if offset >= first[number]}
        assert len(left) > 2
        assert [noted(flow_world, flow, 3) for flow in rides.flows.values()] == [left] * 3


def delete_before(world: FlowWorld, rides: Rides, offsets: dict[int, int]) -> None:
    positions = [TopicPartition(rides.rides.name, number, offset) for number, offset in offsets.items()]
    for future in world.cluster.admin().delete_records(positions).values():
        future.result(30)


def test_late_events_are_kept_dropped_or_written_to_the_side_as_the_flow_declares(
    flow_world: FlowWorld,
) -> None:
    rides = Rides()
    keep = rides.app.flow(
        reads=[rides.rides],
        writes=rides.app.topic(f"{rides.app.name}-kept", key="ride"),
        name=f"{rides.app.name}-keep",
    )(lambda rides: rides)
    # An event exactly 20 s behind is not late; an event one millisecond older is.
    times = [NOON + timedelta(seconds=second) for second in (100, 79.999, 80, 0, 200)]
    sent = [Ride(f"r{number}", "p", at) for number, at in enumerate(times)]
    flow_world.declare(rides.app)
    flow_world.write(rides.rides, sent, partition=0)
    with flow_world.running(rides.app, follow=False) as run:
        run.wait_until_derived()
    bootstrap = flow_world.cluster.bootstrap

    def written(topic: str) -> list[str]:
        return [(record.key() or b"").decode() for record in committed(bootstrap, topic)]

    assert written(keep.writes.name) == ["r0", "r1", "r2", "r3", "r4"]
    assert written(keep.late_topic) == []
    drop, side = rides.flows["drop"], rides.flows["side"]
    assert written(drop.writes.name) == written(side.writes.name) == ["r0", "r2", "r4"]
    assert written(drop.late_topic) == [f"{rides.rides.name}/0/1", f"{rides.rides.name}/0/3"]
    assert written(side.late_topic) == ["r1", "r3"]
    (first, _) = committed(bootstrap, side.late_topic)
    assert json.loads(first.value() or b"")["place"] == "p"
    note = json.loads(dict(first.headers() or ())["__headrace.late"] or b"")
    assert (note["offset"], note["newest_us"] - note["event_us"]) == (1, 20_001_000)
    recorded = [current(flow_world.cluster, flow.progress_topic) for flow in rides.app.flows]
    modes = [progress.generation.late for progress in recorded if progress is not None]
    assert modes == ["drop", "side", "drop", "keep"]


def test_an_event_before_the_watermark_that_is_not_late_becomes_a_dead_letter_and_a_rebuild_counts_it(
    flow_world: FlowWorld,
) -> None:
    rides = Rides()
    count = rides.flows["count"]
    flow_world.declare(rides.app)
    for number, second in enumerate((0, 300)):
        at = NOON + timedelta(seconds=second)
        flow_world.write(rides.rides, [Ride(f"0/{number}", "p", at)], partition=0)
        rides.sent[0, number] = at
    with flow_world.running(rides.app, follow=False) as run:
        run.wait_until_derived()
        # Partition 1 had no events, so it did not hold the watermark back.
        rides.sent[1, 0] = NOON
        flow_world.write(rides.rides, [Ride("1/0", "p", NOON)], partition=1)
        run.wait_until_derived()
        (letter,) = committed(flow_world.cluster.bootstrap, count.dead_topic)
        assert headers(letter)["reason"] == Reason.BEHIND
        assert [noted(flow_world, flow) for flow in rides.flows.values()] == [set()] * 3
        expect_proven(run)
    with flow_world.running(rides.app, follow=False, rebuild=[count.name]) as run:
        run.wait_until_derived()
        rows = committed(flow_world.cluster.bootstrap, f"{count.writes.name}.g2")
        assert sum({row.key(): json.loads(row.value() or b"")["count"] for row in rows}.values()) == 3


def test_late_events_that_cannot_be_treated_as_declared_are_refused(flow_world: FlowWorld) -> None:
    app = App("late-refused")
    rides = app.topic("late-refused", Ride, key="ride", time="at", late=LATE)
    counts = app.topic("late-counts", key=["place", "minute"])
    declarations: list[dict[str, Any]] = [
        {"late": "correct"},
        {"late": "forget"},
        {"late": "drop", "latency": "realtime"},
    ]
    for declaration in declarations:
        with pytest.raises(HeadraceError) as refused:
            app.flow(reads=[rides], writes=counts, **declaration)
        assert refused.value.code == "HR-APP-ARGUMENT"

    @app.flow(reads=[rides], writes=counts, late="keep")
    def count(rides: DataFrame) -> DataFrame:
        counted = rides.groupBy("place", F.window("at", "1 minute").alias("window")).count()
        return counted.select("place", F.col("window.start").alias("minute"), "count")

    from headrace.flow.compile.compiler import compile_app

    with pytest.raises(AppMistakes, match="can never drop state of old event times"):
        compile_app(flow_world.spark, app)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(-30, 30), st.booleans(), st.floats(0, 400)), max_size=60
    )
)
def test_a_watermark_is_never_ahead_of_a_partition_with_unread_or_recent_events(
    steps: list[tuple[int, int, bool, float]],
) -> None:
    clock, newest = DrivenClock(), dict[int, int]()
    policy, last_read = WatermarkPolicy(clock, 600.0), dict[int, float]()
    now = 0.0
    for partition, advance, is_unread, pause_s in steps:
        clock.advance(pause_s)
        now += pause_s
        newest[partition] = max(newest.get(partition, 0), newest.get(partition, 0) + advance)
        last_read[partition] = now
        unread = [partition] if is_unread else []
        reached = policy.reached_us("rides", newest, [partition], unread)
        holding = [
            time_us
            for number, time_us in newest.items()
            if number in unread or now - last_read[number] < 600.0
        ]
        assert reached is not None
        assert reached == min(holding)


def test_a_partition_with_unread_records_but_no_events_holds_the_watermark_back() -> None:
    policy = WatermarkPolicy(DrivenClock(), 600.0)
    assert policy.reached_us("rides", {0: 5}, [0], [1]) is None
    assert policy.reached_us("rides", {0: 5}, [0], []) == 5
    assert policy.reached_us("rides", {}, [], []) is None
