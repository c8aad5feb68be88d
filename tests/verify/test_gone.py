"""What is gone from the log cannot be proven, and says so; the rest is."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from headrace.client.progress_log import batches
from headrace.client.reading import read
from headrace.ops.report import Report
from tests.flow.reading import committed
from tests.support.flows import FlowWorld, RunningApp
from tests.support.waiting import until
from tests.verify.mill import Mill, Sensor, readings
from tests.verify.planting import copied, planted, verifier, verify

pytestmark = pytest.mark.usefixtures("as_for_users")

COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.001",
}


@pytest.fixture(scope="module")
def mill() -> Mill:
    return Mill("gone")


@pytest.fixture(scope="module")
def run(flow_world: FlowWorld, mill: Mill) -> RunningApp:
    """Readings of some minutes and, an hour later, some more; in between a row that the flow has not written."""
    flow_world.cluster.ensure_topic(mill.sensors.name, 1, COMPACTED)
    flow_world.declare(mill.app)
    flow_world.write(mill.sensors, [Sensor(f"s{n}", f"first {n}", Decimal(n + 1)) for n in range(7)])
    flow_world.write(mill.readings, readings(4, 100, dead=2))
    with flow_world.running(mill.app, max_rows=40) as running:
        running.derived()
        twin = committed(flow_world.cluster.bootstrap, mill.scaled.name)[0]
        flow_world.write(mill.scaled, [(twin.key(), twin.value())])
        flow_world.write(mill.readings, readings(5, 100, begin_s=3600, dead=2))
        running.followed()
    return running


def reads_up_to(world: FlowWorld, mill: Mill, at_least: int) -> dict[int, int]:
    """Where the batch ended that had read so many readings."""
    for batch in batches(world.cluster, mill.follow.progress_topic, 1):
        if batch.totals.rows_in >= at_least:
            return {int(one): to for one, (_, to) in batch.inputs[mill.readings.name].items()}
    raise AssertionError("no such batch")


def test_a_row_that_is_there_twice_is_found_in_the_topic_though_no_view_shows_it(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    with verifier(run) as one:
        view, topic = one.view(mill.views["scaled"]), one.flow(mill.scale)
    assert view.proven, view.lines()
    assert (topic.verdict, topic.missing, topic.extra, topic.different) == ("different", 0, 0, 1)
    twin = topic.differences[0]
    assert twin.columns == ["times"]
    assert twin.expected is not None
    assert twin.found is not None
    assert twin.found["times"] == twin.expected["times"] + 1


def test_a_table_that_was_compacted_since_cannot_prove_what_was_joined_with_it(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    # One by one, since a segment ends with a batch, and the one that is written to is never compacted.
    for number in range(21):
        flow_world.write(mill.sensors, [Sensor(f"s{number % 7}", f"{number} {'x' * 700}", Decimal(number))])
    until(lambda: left(flow_world, mill) < 21, "compaction", pause_s=0.05)
    report = verify(run, mill.views["scaled"])
    assert (report.verdict, report.exit_code) == ("unprovable", 6)
    assert report.unprovable_rows == report.found_rows
    assert {one.topic for one in report.unprovable} == {mill.readings.name}
    assert all(mill.sensors.name in one.why for one in report.unprovable)
    # What comes after it can be proven again.
    with flow_world.running(mill.app, max_rows=40) as running:
        flow_world.write(mill.readings, readings(6, 20, begin_s=3700, dead=0))
        running.followed()
    again = verify(run, mill.views["scaled"])
    assert again.verdict == "unprovable"
    assert again.unprovable == report.unprovable
    assert 0 < again.found_rows - again.unprovable_rows == again.expected_rows
    assert again.expected_sha256 == again.found_sha256


def left(world: FlowWorld, mill: Mill) -> int:
    end = world.cluster.ends(mill.sensors.name)[0]
    return sum(1 for _ in read(world.cluster, mill.sensors.name, {0: (0, end)}))


def test_deleted_input_is_unprovable_before_its_offset_and_the_rest_is_proven(
    flow_world: FlowWorld, mill: Mill, run: RunningApp, tmp_path: Path
) -> None:
    cluster = flow_world.cluster
    kept_from = reads_up_to(flow_world, mill, 60)
    places = [TopicPartition(mill.readings.name, one, max(1, at - 3)) for one, at in kept_from.items()]
    for deleted in cluster.admin().delete_records(places).values():
        deleted.result(30)
    newest, totals = verify(run, mill.views["newest"]), verify(run, mill.views["totals"])
    for report in (newest, totals):
        assert (report.verdict, report.exit_code) == ("unprovable", 6), report.lines()
        told = {(one.topic, one.partition): one.before for one in report.unprovable}
        # Three records of the last batch are still there; a batch is derived whole or not at all.
        assert told == {(mill.readings.name, one): at for one, at in kept_from.items()}
        assert f"unprovable before offset {kept_from[0]} of {mill.readings.name}/0" in "\n".join(
            report.lines()
        )
        assert report.expected_sha256 == report.found_sha256
    # Every sensor has had readings since. The sums of the first minutes may lack some; those of the next hour do not.
    assert newest.unprovable_rows == 0
    assert 0 < totals.unprovable_rows < totals.found_rows
    assert totals.expected_rows == totals.found_rows - totals.unprovable_rows
    check_planted(flow_world, mill, run, tmp_path)


def check_planted(world: FlowWorld, mill: Mill, run: RunningApp, folder: Path) -> None:
    """A mistake in what can be proven counts more than what cannot; one in the rest cannot be seen."""
    data = copied(world, mill.app.name, folder)
    with planted(data, mill.app.name) as store:
        first, *_, last = store.execute('SELECT minute, sensor FROM "totals-gone" ORDER BY 1, 2').fetchall()
        for row in (first, last):
            store.execute('UPDATE "totals-gone" SET amount = amount + 1 WHERE minute = ? AND sensor = ?', row)
    report: Report = verify(run, mill.views["totals"], data)
    assert (report.verdict, report.exit_code) == ("different", 1)
    assert report.unprovable
    assert [(one.kind, one.key["minute"], one.key["sensor"]) for one in report.differences] == [
        ("different", *last)
    ]
