"""A proof of what is right, and the names of what is wrong."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.client.progress_log import batches
from headrace.flow.compiling import compile_app
from headrace.ops.report import Difference, Report
from headrace.ops.results import last_results
from tests.flow.reading import committed, folded
from tests.support.flows import FlowWorld, RunningApp
from tests.verify.mill import LATE, Mill, Sensor, readings
from tests.verify.planting import copied, planted, verifier, verify

pytestmark = pytest.mark.usefixtures("as_for_users")


@pytest.fixture(scope="module")
def mill() -> Mill:
    return Mill("proofs")


@pytest.fixture(scope="module")
def run(flow_world: FlowWorld, mill: Mill) -> RunningApp:
    """Two runs of readings, with a table that changes in between, derived in many batches; then all is quiet."""
    flow_world.declare(mill.app)
    flow_world.write(mill.sensors, [Sensor(f"s{n}", f"first {n}", Decimal(n + 1)) for n in range(5)])
    flow_world.write(mill.readings, readings(1, 120))
    with flow_world.running(mill.app, max_rows=50) as running:
        running.derived()
        flow_world.write(mill.sensors, [Sensor(f"s{n}", f"then {n}", Decimal("2.5")) for n in range(3)])
        flow_world.write(mill.sensors, [(b"s4", None)])
        flow_world.write(mill.readings, readings(2, 120, begin_s=120))
        running.followed()
    return running


def counted(world: FlowWorld, mill: Mill, flow: Any) -> tuple[list[dict[str, Any]], int, int]:
    """The readings that a flow has to count, by a rule written down here; and how many are late, and dead.

    A reading is late if it is older than the latest one of all batches before its own, less what it may be late.
    """
    records = committed(world.cluster.bootstrap, mill.readings.name)
    by_place = {(one.partition(), one.offset()): one for one in records}
    good: list[dict[str, Any]] = []
    late = dead = 0
    seen: datetime | None = None
    for batch in batches(world.cluster, flow.progress_topic, 1):
        times = []
        for number, (low, high) in batch.inputs[mill.readings.name].items():
            for offset in range(low, high):
                value = by_place[int(number), offset].value()
                try:
                    row = json.loads(value)
                    at = datetime.fromisoformat(row["at"])
                except (TypeError, ValueError, KeyError):
                    dead += 1
                    continue
                times.append(at)
                if seen is not None and at < seen - LATE:
                    late += 1
                else:
                    good.append(row)
        seen = max([*times, *([seen] if seen else [])])
    return good, late, dead


def test_every_view_and_every_topic_of_a_clean_app_is_proven(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    with verifier(run) as one:
        reports = [found for found in one.all() if isinstance(found, Report)]
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
        == len(folded(flow_world.cluster.bootstrap, mill.totals.name))
        > 20
    )
    # The table has changed, so its past had to be told; and the last row of a key is not its only one.
    tables = [one.tables for one in batches(flow_world.cluster, mill.scale.progress_topic, 1)]
    assert tables[0] != tables[-1]
    assert by_name["follow-proofs"].found_rows > by_name["newest-proofs"].found_rows
    kept = {report.name: report for report in last_results(flow_world.cluster, mill.app.name)}
    assert kept == by_name


def test_what_is_late_repeated_disordered_or_dead_is_left_out_or_counted_exactly(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    good, late, dead = counted(flow_world, mill, mill.total)
    expected: dict[tuple[str, datetime], tuple[int, int, float]] = defaultdict(lambda: (0, 0, 0.0))
    for row in good:
        at = datetime.fromisoformat(row["at"]).astimezone(UTC)
        key = row["sensor"], at.replace(second=0, microsecond=0)
        amount, count, weight = expected[key]
        expected[key] = amount + row["amount"], count + 1, weight + row["weight"]
    found = {
        (row["sensor"], datetime.fromisoformat(row["minute"])): row
        for row in folded(flow_world.cluster.bootstrap, mill.totals.name).values()
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


def test_planted_mistakes_are_named_exactly(
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
    found = {one.kind: one for one in report.differences}
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
    told = "\n".join(report.lines())
    assert f"amount: {different.expected['amount']} expected, {different.found['amount']} found" in told


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("batch = batch - 1", "it says batch"),
        ("offsets = '{\"0\":3}'", "the end of no batch"),
        ("progress_offset = progress_offset + 1", "progress offset"),
        ("batch = 700, offsets = '{\"0\":70000}', progress_offset = 7000", "the log has no such batch"),
        ("generation = 2", "generation 2"),
        ("progress_id = 'x'", "made again"),
        ("topic = 'scaled-proofs'", "it follows scaled-proofs"),
    ],
)
def test_a_position_that_was_moved_is_named_and_rows_are_not_blamed_for_it(
    flow_world: FlowWorld, mill: Mill, run: RunningApp, tmp_path: Path, change: str, says: str
) -> None:
    data = copied(flow_world, mill.app.name, tmp_path)
    with planted(data, mill.app.name) as store:
        store.execute(f"UPDATE _headrace_views SET {change} WHERE view = 'newest-proofs'")
    report = verify(run, mill.views["newest"], data)
    assert (report.verdict, report.exit_code) == ("different", 1)
    assert [one.kind for one in report.findings] == ["position"]
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
    assert [(one.kind, one.key["sensor"]) for one in report.differences] == [
        ("different", "s1"),
        ("missing", "s2"),
        ("extra", "s4"),
    ]
    with planted(data, mill.app.name) as store:
        store.execute("UPDATE _headrace_views SET offsets = '{\"0\":99}' WHERE view = 'sensors-proofs'")
    report = verify(run, mill.views["sensors"], data)
    assert [one.kind for one in report.findings] == ["position"]


def test_a_view_that_another_version_of_the_function_derived_is_named(
    flow_world: FlowWorld, mill: Mill, run: RunningApp
) -> None:
    changed = Mill("proofs", doubled=True)
    compiled, schemas = compile_app(flow_world.spark, changed.app)
    report = verify(RunningApp(flow_world, changed.app, compiled, schemas, 50), changed.views["totals"])
    assert (report.verdict, report.exit_code) == ("different", 1)
    assert [one.kind for one in report.findings] == ["function"]
    # And what the new one would make of it.
    assert report.different == report.found_rows
    assert {tuple(one.columns) for one in report.differences} == {("amount",)}
