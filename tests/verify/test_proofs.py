"""Proofs of correct views, and how proofs report faults."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from faults.flows.world import FlowWorld, RunningApp
from headrace.client.progress import batches
from headrace.flow.compile.compiler import compile_app
from headrace.ops.verify.report import Difference, Report, last_reports
from tests.flow.topic_contents import committed, last_values
from tests.verify.mill import LATE, Mill, Sensor, readings
from tests.verify.planted_faults import copied, planted, verifier, verify

pytestmark = pytest.mark.usefixtures("compiled_plans")


@pytest.fixture(scope="module")
def mill() -> Mill:
    return Mill("proofs")


@pytest.fixture(scope="module")
def run(flow_world: FlowWorld, mill: Mill) -> RunningApp:
    """Two series of readings, derived in many batches, and a table that changes between the series."""
    flow_world.declare(mill.app)
    flow_world.write(mill.sensors, [Sensor(f"s{n}", f"first {n}", Decimal(n + 1)) for n in range(5)])
    flow_world.write(mill.readings, readings(1, 120))
    with flow_world.running(mill.app, max_rows=100) as running:
        running.wait_until_derived()
        flow_world.write(mill.sensors, [Sensor(f"s{n}", f"then {n}", Decimal("2.5")) for n in range(3)])
        flow_world.write(mill.sensors, [(b"s4", None)])
        flow_world.write(mill.readings, readings(2, 120, begin_s=120))
        running.wait_until_followed()
    return running


def counted(world: FlowWorld, mill: Mill) -> tuple[list[dict[str, Any]], int, int]:
    """The readings that a flow must count, and the numbers of late and dead ones, computed independently.

    A reading is late if it is older than the latest earlier reading of its partition minus ``LATE``.
    """
    records = committed(world.cluster.bootstrap, mill.readings.name)
    good: list[dict[str, Any]] = []
    late = dead = 0
    newest: dict[int, datetime] = {}
    for record in sorted(records, key=lambda record: (record.partition() or 0, record.offset() or 0)):
        partition = record.partition() or 0
        try:
            row = json.loads(record.value() or b"")
            at = datetime.fromisoformat(row["at"])
        except (TypeError, ValueError, KeyError):
            dead += 1
            continue
        known = newest.setdefault(partition, at)
        if at < known - LATE:
            late += 1
        else:
            good.append(row)
        newest[partition] = max(known, at)
    return good, late, dead


def test_every_view_and_every_topic_of_a_clean_app_is_proven(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    with verifier(run) as verification:
        reports = [found for found in verification.all() if isinstance(found, Report)]
    for report in reports:
        assert report.proven, report.lines()
        assert report.expected_sha256 == report.found_sha256
        assert report.exit_code == 0
    assert [report.name for report in reports] == [
        *("sensors-proofs", "scaled-proofs", "lately-proofs", "scale-proofs"),
        *("totals-proofs", "total-proofs", "newest-proofs", "follow-proofs"),
    ]
    by_name = {report.name: report for report in reports}
    assert (
        by_name["totals-proofs"].found_rows
        == len(last_values(flow_world.cluster.bootstrap, mill.totals.name))
        > 20
    )
    # The table has changed, so verify needed a past version; and some keys have several rows.
    tables = [batch.tables for batch in batches(flow_world.cluster, mill.scale.progress_topic, 1)]
    assert tables[0] != tables[-1]
    assert by_name["follow-proofs"].found_rows > by_name["newest-proofs"].found_rows
    kept = {report.name: report for report in last_reports(flow_world.cluster, mill.app.name)}
    assert kept == by_name


def test_late_repeated_disordered_and_dead_records_are_excluded_or_counted_exactly(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    good, late, dead = counted(flow_world, mill)
    expected: dict[tuple[str, datetime], tuple[int, int, float]] = defaultdict(lambda: (0, 0, 0.0))
    for row in good:
        at = datetime.fromisoformat(row["at"]).astimezone(UTC)
        key = row["sensor"], at.replace(second=0, microsecond=0)
        amount, count, weight = expected[key]
        expected[key] = amount + row["amount"], count + 1, weight + row["weight"]
    found = {
        (row["sensor"], datetime.fromisoformat(row["minute"])): row
        for row in last_values(flow_world.cluster.bootstrap, mill.totals.name).values()
    }
    assert found.keys() == expected.keys()
    for key, (amount, count, weight) in expected.items():
        assert (found[key]["amount"], found[key]["readings"]) == (amount, count)
        assert math.isclose(found[key]["weight"], weight)
    report = verify(run, mill.views["totals"])
    assert report.proven
    assert (report.late, report.dead) == (late, dead)
    assert report.records == len(good) + late + dead
    assert late > 5
    assert dead == 8


def test_planted_faults_are_named_exactly(
    flow_world: FlowWorld, mill: Mill, run: RunningApp, tmp_path: Path
) -> None:
    data = copied(flow_world, mill.app.name, tmp_path)
    with planted(data, mill.app.name) as store:
        rows = store.execute('SELECT sensor, minute FROM "totals-proofs" ORDER BY 1, 2').fetchall()
        corrupted, missing = rows[3], rows[8]
        extra = ("s1", "2026-03-01T18:00:00.000000Z", 7, 0.5, 1)
        store.execute(
            'UPDATE "totals-proofs" SET amount = amount + 1 WHERE sensor = ? AND minute = ?', corrupted
        )
        store.execute('DELETE FROM "totals-proofs" WHERE sensor = ? AND minute = ?', missing)
        store.execute('INSERT INTO "totals-proofs" VALUES (?, ?, ?, ?, ?)', extra)
    report = verify(run, mill.views["totals"], data)
    assert (report.verdict, report.exit_code) == ("different", 1)
    assert (report.missing, report.extra, report.different) == (1, 1, 1)
    assert report.findings == []
    assert report.expected_sha256 != report.found_sha256
    found = {difference.kind: difference for difference in report.differences}
    assert len(report.differences) == 3
    assert tuple(found["missing"].key.values()) == missing
    assert tuple(found["extra"].key.values()) == extra[:2]
    assert found["extra"].found == dict(
        zip(("sensor", "minute", "amount", "weight", "readings"), extra, strict=True)
    )
    different: Difference = found["different"]
    assert tuple(different.key.values()) == corrupted
    assert different.columns == ["amount"]
    assert different.expected is not None
    assert different.found is not None
    assert different.found["amount"] == different.expected["amount"] + 1
    result = "\n".join(report.lines())
    assert f"amount: {different.expected['amount']} expected, {different.found['amount']} found" in result


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("batch = batch - 1", "the view's position is inconsistent: batch"),
        ("offsets = '{\"0\":3}'", "not the end of a batch"),
        ("progress_offset = progress_offset + 1", "progress offset"),
        (
            "batch = 700, offsets = '{\"0\":70000}', progress_offset = 7000",
            "the log does not have this batch",
        ),
        ("generation = 2", "generation 2"),
        ("progress_id = 'x'", "recreated"),
        ("topic = 'scaled-proofs'", "the view follows scaled-proofs"),
    ],
)
def test_a_moved_position_is_reported_without_blaming_rows(
    flow_world: FlowWorld, mill: Mill, run: RunningApp, tmp_path: Path, change: str, says: str
) -> None:
    data = copied(flow_world, mill.app.name, tmp_path)
    with planted(data, mill.app.name) as store:
        store.execute(f"UPDATE _headrace_views SET {change} WHERE view = 'newest-proofs'")
    report = verify(run, mill.views["newest"], data)
    assert (report.verdict, report.exit_code) == ("different", 1)
    assert [finding.kind for finding in report.findings] == ["position"]
    assert says in report.findings[0].message
    assert (report.missing, report.extra, report.different) == (0, 0, 0)


def test_a_moved_position_and_a_planted_row_of_a_topic_that_no_flow_writes_are_named(
    flow_world: FlowWorld, mill: Mill, run: RunningApp, tmp_path: Path
) -> None:
    data = copied(flow_world, mill.app.name, tmp_path)
    with planted(data, mill.app.name) as store:
        store.execute("UPDATE \"sensors-proofs\" SET factor = '7.000000' WHERE sensor = 's1'")
        store.execute("DELETE FROM \"sensors-proofs\" WHERE sensor = 's2'")
        store.execute("INSERT INTO \"sensors-proofs\" VALUES ('s4', 'deleted', '1.000000')")
    report = verify(run, mill.views["sensors"], data)
    assert [(difference.kind, difference.key["sensor"]) for difference in report.differences] == [
        ("different", "s1"),
        ("missing", "s2"),
        ("extra", "s4"),
    ]
    with planted(data, mill.app.name) as store:
        store.execute("UPDATE _headrace_views SET offsets = '{\"0\":99}' WHERE view = 'sensors-proofs'")
    report = verify(run, mill.views["sensors"], data)
    assert [finding.kind for finding in report.findings] == ["position"]


def test_a_view_derived_by_another_version_of_the_function_is_named(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    changed = Mill("proofs", doubled=True)
    compiled, schemas = compile_app(flow_world.spark, changed.app)
    report = verify(RunningApp(flow_world, changed.app, compiled, schemas, 50), changed.views["totals"])
    assert (report.verdict, report.exit_code) == ("different", 1)
    assert [finding.kind for finding in report.findings] == ["function"]
    # The report also has the differences from the rows of the new version.
    assert report.different == report.found_rows
    assert {tuple(difference.columns) for difference in report.differences} == {("amount",)}
