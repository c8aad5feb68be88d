"""Verify detects a flow that reads its table wrongly, because verify computes the rows of tables itself."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from headrace.flow.tables import current as tables
from headrace.flow.tables import reach as table_reach
from headrace.flow.tables.reach import table_mistakes
from headrace.model.progress import Batch, Generation, Input, encode
from headrace.ops.verify.report import Report
from tests.flow.test_tables import Name, Shelf
from tests.verify.planted_faults import verifier

pytestmark = pytest.mark.usefixtures("compiled_plans")


def first_instead_of_last(decoded: DataFrame, partitions: int) -> DataFrame:
    row = F.min_by(F.struct("row", "partition", "logged_us"), "offset").alias("last")
    return decoded.groupBy("key").agg(row).select("key", "last.*", F.lit(False).alias("moved"))


def skip_changes(state: tables.TableState, messages: Any) -> list[Any]:
    return []


def read_only_once(read_on: Any) -> Any:
    def once(state: tables.TableState, *context: Any) -> None:
        if not state._frame_is_current:
            read_on(state, *context)

    return once


def run_and_expect_differences(world: FlowWorld) -> Report:
    """Three batches over a table that changes before each."""
    shelf = Shelf(Name)
    world.declare(shelf.app)
    world.write(shelf.things, [Name("t", "0"), Name("t", "1")])
    with world.running(shelf.app, follow=False) as run:
        for version in (2, 3, 4):
            shelf.visit(world, "t")
            run.wait_until_derived()
            world.write(shelf.things, [Name("t", f"{version}")])
    with verifier(run) as verification:
        report = verification.flow(shelf.see)
    assert (report.verdict, report.exit_code) == ("different", 1), report.lines()
    return report


def test_a_table_with_wrong_rows_and_an_outdated_table_are_detected(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "latest", first_instead_of_last)
    monkeypatch.setattr(tables.TableState, "_apply", skip_changes)
    report = run_and_expect_differences(flow_world)
    missing = [
        msgspec.json.decode(difference.expected["value"])
        for difference in report.differences
        if difference.expected
    ]
    # The first version had wrong rows, the later versions were not updated.
    assert {row["visit"]: row["name"] for row in missing} == {"l0": "1", "l1": "2", "l2": "3"}


def test_a_join_with_an_old_version_of_a_table_is_detected(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow's rows match its recorded offsets, but each batch should have read more of the table."""
    monkeypatch.setattr(
        tables.TableState, "_read_new_records", read_only_once(tables.TableState._read_new_records)
    )
    monkeypatch.setattr(table_reach, "_VISIBILITY_DELAY_MS", 0)
    report = run_and_expect_differences(flow_world)
    assert (report.missing, report.extra, report.different) == (0, 0, 0)
    [finding] = report.findings
    assert "batch 2 had read table" in finding.message
    assert "up to offset 2, but the record at 2 was appended" in finding.message


def test_decreasing_table_offsets_and_changed_partitions_are_faults(flow_world: FlowWorld) -> None:
    shelf, cluster = Shelf(Name), flow_world.cluster
    log = f"by-hand-{uuid.uuid4().hex[:8]}"
    cluster.ensure_topic(shelf.see.progress_topic, 1)
    generation = Generation(
        app="a",
        flow=shelf.see.name,
        generation=1,
        fingerprint="f",
        inputs=[Input(log, log, "id", "table", {"0": 0, "1": 0})],
        output="o",
        output_id="id",
        key=["visit"],
        schema=[],
        checkpoint="c",
        started_ms=0,
    )
    first = Batch(
        flow=shelf.see.name,
        generation=1,
        batch=0,
        inputs={},
        tables={log: {"0": 5, "1": 7}},
        outputs={},
        watermark_us=None,
        next_watermark_us=None,
        seen_us={},
        rows_in=0,
        rows_out=0,
        late=0,
        dead=0,
        fingerprint="f",
    )
    tables_of: Sequence[dict[str, int]] = ({"0": 6, "1": 7}, {"0": 6, "1": 4}, {"0": 6, "1": 4, "2": 0})
    later = [
        msgspec.structs.replace(first, batch=number + 1, tables={log: offsets})
        for number, offsets in enumerate(tables_of)
    ]
    producer = cluster.producer()
    for record in (generation, first, *later):
        key, value = encode(record)
        producer.produce(shelf.see.progress_topic, key=key, value=value)
    assert producer.flush(10) == 0
    found = table_mistakes(cluster, shelf.see, generation, later[-1], [])
    assert found == (
        f"batch 2 had read table {log}/1 up to offset 4, but the earlier batch 1 up to 7",
        f"batch 3 read 3 partitions of table {log}, but the generation began with 2",
    )
    assert not table_mistakes(cluster, shelf.see, generation, later[0], [])
