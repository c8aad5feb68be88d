"""Spark's state of a flow, lost, damaged or of another time: the flow stops and says so, and can be derived anew."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App
from headrace.errors import HeadraceError
from headrace.flow.checkpoint_folder import newest_folder, take_folder
from headrace.flow.errors import (
    CheckpointLost,
    CheckpointStale,
    FlowError,
    FlowFenced,
    InputGone,
    StateDamaged,
)
from headrace.model.flow import Flow
from headrace.model.store_place import file_of
from headrace.truth import VOLATILE_CONFIG, NotASourceOfTruth
from tests.flow.reading import folded, values
from tests.flow.test_flows import checkpoint_of, run_to_the_end
from tests.support.flows import FlowWorld
from tests.support.waiting import until


@dataclass(frozen=True)
class Step:
    walker: str
    length: int


class Walk:
    """A flow with a state, and one without."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"walk-{mark}")
        self.steps = app.topic(f"steps-{mark}", Step)
        self.ways = app.topic(f"ways-{mark}", key="walker")

        @app.flow(reads=[self.steps], writes=self.ways, name=f"walk-{mark}", unbounded=True)
        def walk(steps: DataFrame) -> DataFrame:
            return steps.groupBy("walker").agg(F.sum("length").alias("length"))

        self.walk: Flow = walk
        self.view = app.view(f"ways_{mark}", self.ways)

    def write(self, world: FlowWorld, *lengths: int) -> None:
        world.declare(self.app)
        world.write(self.steps, [(None, b'{"walker":"w%d","length":%d}' % (one % 2, one)) for one in lengths])


def cut_short(folder: Path) -> None:
    for one in folder.glob("state/0/*/*.delta"):
        os.truncate(one, one.stat().st_size // 2)


def garble(*names: str) -> Callable[[Path], None]:
    return lambda folder: [folder.joinpath(name).write_text("garbled") for name in names] and None


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / name)


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


HARM: dict[str, tuple[Callable[[Path], None], type[FlowError]]] = {
    "lost": (shutil.rmtree, CheckpointLost),
    "emptied": (emptied, CheckpointLost),
    "planned batches lost": (without("offsets"), CheckpointStale),
    "done batches lost": (without("commits"), CheckpointStale),
    "planned batch garbled": (garble("offsets/1"), CheckpointStale),
    "state lost": (without("state"), StateDamaged),
    "state cut short": (cut_short, StateDamaged),
}


def expect_stop(world: FlowWorld, app: App, *kinds: type[HeadraceError]) -> HeadraceError:
    with pytest.raises(kinds) as stopped, world.running(app, follow=False) as run:
        until(lambda: run.errors, "the flow stops")
    return stopped.value


def test_a_checkpoint_that_was_harmed_stops_the_flow_and_what_was_derived_can_be_derived_anew(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    walk, other = Walk(), Walk()
    for lengths in ((1, 2, 3), (4, 5)):
        walk.write(flow_world, *lengths)
        run_to_the_end(flow_world, walk.app)
    place = checkpoint_of(flow_world, walk.walk)
    shutil.copytree(place, tmp_path / "whole")
    walk.write(flow_world, 6)
    for name, (harm, kind) in HARM.items():
        harm(place)
        stopped = expect_stop(flow_world, walk.app, kind)
        assert str(place.with_suffix("")) in str(stopped), f"{name}: {stopped}"
        assert "the last progress in the log is generation 1, batch 1, inputs" in stopped.detail, name
        assert f"headrace flow rebuild APP {walk.walk.name}" in stopped.hint, name
        for left in place.parent.iterdir():
            shutil.rmtree(left)
        shutil.copytree(tmp_path / "whole", place)
    other.write(flow_world, 1)
    run_to_the_end(flow_world, other.app)
    shutil.rmtree(place)
    shutil.copytree(checkpoint_of(flow_world, other.walk), place)
    expect_stop(flow_world, walk.app, CheckpointStale)
    with flow_world.running(walk.app, rebuild=[walk.walk.name]) as run:
        run.followed()
    with contextlib.closing(sqlite3.connect(file_of(walk.view, walk.app.name, flow_world.home))) as store:
        assert sorted(store.execute(f'SELECT * FROM "{walk.view.name}"')) == [("w0", 12), ("w1", 9)]
    rows = folded(flow_world.cluster.bootstrap, f"{walk.ways.name}.g2")
    assert rows == {"w0": {"walker": "w0", "length": 12}, "w1": {"walker": "w1", "length": 9}}
    before = folded(flow_world.cluster.bootstrap, walk.ways.name)
    assert {key: row["length"] for key, row in before.items()} == {"w0": 6, "w1": 9}


def test_what_a_replaced_driver_still_writes_into_its_checkpoint_is_nothing_to_its_successor(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    walk = Walk()
    walk.write(flow_world, 1, 2, 3)
    run_to_the_end(flow_world, walk.app)
    replaced = checkpoint_of(flow_world, walk.walk)
    walk.write(flow_world, 4, 5)
    with flow_world.running(walk.app, follow=False) as run:
        run.derived()
        assert not replaced.exists()
        # Its tasks come to their end: state of the batch that the successor has committed, over other input.
        mine = checkpoint_of(flow_world, walk.walk)
        shutil.copytree(mine, replaced)
        garble("offsets/2", "commits/1", "metadata")(replaced)
        cut_short(replaced)
    walk.write(flow_world, 6)
    with flow_world.running(walk.app, follow=False) as run:
        run.derived()
        assert not mine.exists()
    rows = folded(flow_world.cluster.bootstrap, walk.ways.name)
    assert {key: row["length"] for key, row in rows.items()} == {"w0": 12, "w1": 9}


def test_a_driver_that_comes_too_late_for_a_checkpoint_asks_whose_the_flow_is(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    def of_another() -> None:
        raise FlowFenced("walk", None)

    (tmp_path / "g1-a.2").mkdir()
    (tmp_path / "g1-a.10").mkdir()
    location = (tmp_path / "g1-a").as_uri()
    assert newest_folder(flow_world.spark, location) == f"{location}.10"
    assert newest_folder(flow_world.spark, f"{location}b") is None
    with pytest.raises(FlowFenced):
        take_folder(flow_world.spark, f"{location}.9", of_another)
    assert take_folder(flow_world.spark, f"{location}.9", lambda: None) == f"{location}.11"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["g1-a.11", "g1-a.2"]


def test_input_that_was_deleted_before_it_was_read_is_not_passed_over_in_silence(
    flow_world: FlowWorld,
) -> None:
    walk = Walk()
    walk.write(flow_world, 1)
    run_to_the_end(flow_world, walk.app)
    walk.write(flow_world, 2, 3, 4, 5)
    admin = AdminClient({"bootstrap.servers": flow_world.cluster.bootstrap})
    for asked in admin.delete_records([TopicPartition(walk.steps.name, 0, 3)]).values():
        asked.result(30)
    gone = expect_stop(flow_world, walk.app, InputGone)
    assert "offsets 1 to 2 were deleted" in gone.detail
    with flow_world.running(walk.app, follow=False, rebuild=[walk.walk.name]) as run:
        run.derived()
    rows = values(flow_world.cluster.bootstrap, f"{walk.ways.name}.g2")
    assert {row["walker"]: row["length"] for row in rows} == {"w0": 4, "w1": 5}


def test_nothing_is_derived_from_a_topic_that_a_restart_empties(flow_world: FlowWorld) -> None:
    walk = Walk()
    admin = AdminClient({"bootstrap.servers": flow_world.cluster.bootstrap})
    made = admin.create_topics([NewTopic(walk.steps.name, 1, config={VOLATILE_CONFIG: "true"})])
    made[walk.steps.name].result(30)
    expect_stop(flow_world, walk.app, NotASourceOfTruth)
    assert not flow_world.cluster.ends(walk.walk.progress_topic)[0]
