"""Deleted input makes rows unprovable, with the reason in the report; the rest is proven."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from faults.flows.world import FlowWorld, RunningApp
from faults.wait import until
from headrace.client.progress import batches
from headrace.client.records import read
from headrace.ops.verify.report import Report
from tests.flow.topic_contents import committed
from tests.verify.mill import Mill, Sensor, readings
from tests.verify.planted_faults import copied, planted, verifier, verify

pytestmark = pytest.mark.usefixtures("compiled_plans")

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
    """Readings of some minutes, more readings an hour later, and in between a row that the flow did not write."""
    flow_world.cluster.ensure_topic(mill.sensors.name, 1, COMPACTED)
    flow_world.declare(mill.app)
    flow_world.write(mill.sensors, [Sensor(f"s{n}", f"first {n}", Decimal(n + 1)) for n in range(7)])
    flow_world.write(mill.readings, readings(4, 100, dead=2))
    with flow_world.running(mill.app, max_rows=60) as running:
        running.wait_until_derived()
        duplicate = committed(flow_world.cluster.bootstrap, mill.scaled.name)[0]
        flow_world.write(mill.scaled, [(duplicate.key(), duplicate.value())])
        flow_world.write(mill.readings, readings(5, 100, begin_s=3600, dead=2))
        running.wait_until_followed()
    return running


def reads_up_to(world: FlowWorld, mill: Mill, at_least: int) -> dict[int, int]:
    """The end offsets of the batch that had read this many readings."""
    for batch in batches(world.cluster, mill.follow.progress_topic, 1):
        if batch.totals.rows_in >= at_least:
            return {int(number): to for number, (_, to) in batch.inputs[mill.readings.name].items()}
    raise AssertionError("no such batch")


def test_a_duplicate_row_is_detected_in_the_topic_though_no_view_shows_it(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    with verifier(run) as verification:
        view, topic = verification.view(mill.views["scaled"]), verification.flow(mill.scale)
    assert view.proven, view.lines()
    assert (topic.verdict, topic.missing, topic.extra, topic.different) == ("different", 0, 0, 1)
    duplicate = topic.differences[0]
    assert duplicate.columns == ["times"]
    assert duplicate.expected is not None
    assert duplicate.found is not None
    assert duplicate.found["times"] == duplicate.expected["times"] + 1


def test_a_compacted_table_cannot_prove_earlier_joins_with_it(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    # Write one by one: a segment ends with a batch, and the active segment is never compacted.
    for number in range(21):
        flow_world.write(mill.sensors, [Sensor(f"s{number % 7}", f"{number} {'x' * 700}", Decimal(number))])
    until(lambda: count_records(flow_world, mill) < 21, "compaction", pause_s=0.05)
    report = verify(run, mill.views["scaled"])
    assert (report.verdict, report.exit_code) == ("unprovable", 6)
    assert report.unprovable_rows == report.found_rows
    assert {item.topic for item in report.unprovable} == {mill.readings.name}
    assert all(mill.sensors.name in item.why for item in report.unprovable)
    # Later rows are provable again.
    with flow_world.running(mill.app, max_rows=60) as running:
        flow_world.write(mill.readings, readings(6, 20, begin_s=3700, dead=0))
        running.wait_until_followed()
    again = verify(run, mill.views["scaled"])
    assert again.verdict == "unprovable"
    assert again.unprovable == report.unprovable
    assert 0 < again.found_rows - again.unprovable_rows == again.expected_rows
    assert again.expected_sha256 == again.found_sha256


def count_records(world: FlowWorld, mill: Mill) -> int:
    end = world.cluster.ends(mill.sensors.name)[0]
    return sum(1 for _ in read(world.cluster, mill.sensors.name, {0: (0, end)}))


def test_deleted_input_is_unprovable_before_its_offset_and_the_rest_is_proven(
    flow_world: FlowWorld, mill: Mill, run: RunningApp, tmp_path: Path
) -> None:
    cluster = flow_world.cluster
    kept_from = reads_up_to(flow_world, mill, 40)
    deleted_to = [
        TopicPartition(mill.readings.name, number, max(1, at - 3)) for number, at in kept_from.items()
    ]
    for deleted in cluster.admin().delete_records(deleted_to).values():
        deleted.result(30)
    newest, totals = verify(run, mill.views["newest"]), verify(run, mill.views["totals"])
    for report in (newest, totals):
        assert (report.verdict, report.exit_code) == ("unprovable", 6), report.lines()
        result = {(item.topic, item.partition): item.before for item in report.unprovable}
        # Three records of the last batch still exist; a batch is derived completely or not at all.
        assert result == {(mill.readings.name, number): at for number, at in kept_from.items()}
        assert f"unprovable before offset {kept_from[0]} of {mill.readings.name}/0" in "\n".join(
            report.lines()
        )
        assert report.expected_sha256 == report.found_sha256
    # Every sensor has later readings. Sums of the first minutes may lack deleted readings; those an hour later do not.
    assert newest.unprovable_rows == 0
    assert 0 < totals.unprovable_rows < totals.found_rows
    assert totals.expected_rows == totals.found_rows - totals.unprovable_rows
    check_planted(flow_world, mill, run, tmp_path)


def check_planted(world: FlowWorld, mill: Mill, run: RunningApp, folder: Path) -> None:
    """Check that a fault among the provable rows leads to the verdict "different". A proof does not find faults among
    the other rows.
    """
    data = copied(world, mill.app.name, folder)
    with planted(data, mill.app.name) as store:
        first, *_, last = store.execute('SELECT minute, sensor FROM "totals-gone" ORDER BY 1, 2').fetchall()
        for row in (first, last):
            store.execute('UPDATE "totals-gone" SET amount = amount + 1 WHERE minute = ? AND sensor = ?', row)
    report: Report = verify(run, mill.views["totals"], data)
    assert (report.verdict, report.exit_code) == ("different", 1)
    assert report.unprovable
    assert [
        (difference.kind, difference.key["minute"], difference.key["sensor"])
        for difference in report.differences
    ] == [("different", *last)]
