"""A lost, damaged or outdated checkpoint stops the flow, and a rebuild derives the same rows."""

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

from faults.flows.world import FlowWorld
from faults.wait import until
from headrace.app import App
from headrace.errors import HeadraceError
from headrace.flow.errors import (
    CheckpointLost,
    CheckpointStale,
    FlowError,
    FlowFenced,
    InputDeleted,
    StateDamaged,
)
from headrace.flow.spark.checkpoint import newest_folder, take_folder
from headrace.model.declarations import Flow
from headrace.model.store import file_of
from headrace.truth import VOLATILE_CONFIG, NotASourceOfTruth
from tests.flow.test_flows import checkpoint_of, run_to_the_end
from tests.flow.topic_contents import last_values, values


@dataclass(frozen=True)
class Step:
    walker: str
    length: int


class Walk:
    """A flow with state, and one without."""

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
        world.write(
            self.steps, [(None, b'{"walker":"w%d","length":%d}' % (length % 2, length)) for length in lengths]
        )


def truncate_state(folder: Path) -> None:
    for delta in folder.glob("state/0/*/*.delta"):
        os.truncate(delta, delta.stat().st_size // 2)


def garble(*names: str) -> Callable[[Path], None]:
    return lambda folder: [folder.joinpath(name).write_text("garbled") for name in names] and None


def removing(name: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / name)


def empty_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


HARM: dict[str, tuple[Callable[[Path], None], type[FlowError]]] = {
    "lost": (shutil.rmtree, CheckpointLost),
    "empty": (empty_folder, CheckpointLost),
    "planned batches lost": (removing("offsets"), CheckpointStale),
    "finished batches lost": (removing("commits"), CheckpointStale),
    "planned batch garbled": (garble("offsets/1"), CheckpointStale),
    "state lost": (removing("state"), StateDamaged),
    "state truncated": (truncate_state, StateDamaged),
}


def expect_stop(world: FlowWorld, app: App, *kinds: type[HeadraceError]) -> HeadraceError:
    with pytest.raises(kinds) as stopped, world.running(app, follow=False) as run:
        until(lambda: run.errors, "the flow stops")
    return stopped.value


def test_a_damaged_checkpoint_stops_the_flow_and_a_rebuild_derives_the_same_rows(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    walk, other = Walk(), Walk()
    for lengths in ((1, 2, 3), (4, 5)):
        walk.write(flow_world, *lengths)
        run_to_the_end(flow_world, walk.app)
    checkpoint = checkpoint_of(flow_world, walk.walk)
    shutil.copytree(checkpoint, tmp_path / "whole")
    walk.write(flow_world, 6)
    for name, (harm, kind) in HARM.items():
        harm(checkpoint)
        stopped = expect_stop(flow_world, walk.app, kind)
        assert str(checkpoint.with_suffix("")) in str(stopped), f"{name}: {stopped}"
        assert "the last progress record in the log has generation 1, batch 1, inputs" in stopped.detail, name
        assert f"headrace flow rebuild MODULE:APP {walk.walk.name}" in stopped.hint, name
        for entry in checkpoint.parent.iterdir():
            shutil.rmtree(entry)
        shutil.copytree(tmp_path / "whole", checkpoint)
    other.write(flow_world, 1)
    run_to_the_end(flow_world, other.app)
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint_of(flow_world, other.walk), checkpoint)
    expect_stop(flow_world, walk.app, CheckpointStale)
    with flow_world.running(walk.app, rebuild=[walk.walk.name]) as run:
        run.wait_until_followed()
    with contextlib.closing(sqlite3.connect(file_of(walk.view, walk.app.name, flow_world.home))) as store:
        assert sorted(store.execute(f'SELECT * FROM "{walk.view.name}"')) == [("w0", 12), ("w1", 9)]
    rows = last_values(flow_world.cluster.bootstrap, f"{walk.ways.name}.g2")
    assert rows == {"w0": {"walker": "w0", "length": 12}, "w1": {"walker": "w1", "length": 9}}
    assert last_values(flow_world.cluster.bootstrap, walk.ways.name) == rows


def test_checkpoint_files_of_a_replaced_driver_do_not_affect_its_successor(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    walk = Walk()
    walk.write(flow_world, 1, 2, 3)
    run_to_the_end(flow_world, walk.app)
    replaced = checkpoint_of(flow_world, walk.walk)
    walk.write(flow_world, 4, 5)
    with flow_world.running(walk.app, follow=False) as run:
        run.wait_until_derived()
        assert not replaced.exists()
        # Tasks of the old driver end now and write state for a batch that the new driver committed with other input.
        own_checkpoint = checkpoint_of(flow_world, walk.walk)
        shutil.copytree(own_checkpoint, replaced)
        garble("offsets/2", "commits/1", "metadata")(replaced)
        truncate_state(replaced)
    walk.write(flow_world, 6)
    with flow_world.running(walk.app, follow=False) as run:
        run.wait_until_derived()
        assert not own_checkpoint.exists()
    rows = last_values(flow_world.cluster.bootstrap, walk.ways.name)
    assert {key: row["length"] for key, row in rows.items()} == {"w0": 12, "w1": 9}


def test_a_driver_that_cannot_rename_a_checkpoint_checks_the_owner(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    def raise_fenced() -> None:
        raise FlowFenced("walk", None)

    (tmp_path / "g1-a.2").mkdir()
    (tmp_path / "g1-a.10").mkdir()
    location = (tmp_path / "g1-a").as_uri()
    assert newest_folder(flow_world.spark, location) == f"{location}.10"
    assert newest_folder(flow_world.spark, f"{location}b") is None
    with pytest.raises(FlowFenced):
        take_folder(flow_world.spark, f"{location}.9", raise_fenced)
    assert take_folder(flow_world.spark, f"{location}.9", lambda: None) == f"{location}.11"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g1-a.11", "g1-a.2"]


def test_input_that_was_deleted_before_it_was_read_stops_the_flow(
    flow_world: FlowWorld,
) -> None:
    walk = Walk()
    walk.write(flow_world, 1)
    run_to_the_end(flow_world, walk.app)
    walk.write(flow_world, 2, 3, 4, 5)
    admin = AdminClient({"bootstrap.servers": flow_world.cluster.bootstrap})
    for future in admin.delete_records([TopicPartition(walk.steps.name, 0, 3)]).values():
        future.result(30)
    deleted = expect_stop(flow_world, walk.app, InputDeleted)
    assert "offsets 1 to 2 were deleted" in deleted.detail
    with flow_world.running(walk.app, follow=False, rebuild=[walk.walk.name]) as run:
        run.wait_until_derived()
    rows = values(flow_world.cluster.bootstrap, f"{walk.ways.name}.g2")
    assert {row["walker"]: row["length"] for row in rows} == {"w0": 4, "w1": 5}


def test_a_flow_refuses_a_volatile_topic_as_input(flow_world: FlowWorld) -> None:
    walk = Walk()
    admin = AdminClient({"bootstrap.servers": flow_world.cluster.bootstrap})
    futures = admin.create_topics([NewTopic(walk.steps.name, 1, config={VOLATILE_CONFIG: "true"})])
    futures[walk.steps.name].result(30)
    expect_stop(flow_world, walk.app, NotASourceOfTruth)
    assert not flow_world.cluster.ends(walk.walk.progress_topic)[0]
