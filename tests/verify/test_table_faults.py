"""A flow that reads its table wrong is found by verify, which folds and checks tables by itself."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.flow import table_reach, tables
from headrace.flow.table_reach import table_mistakes
from headrace.model.progress import Batch, Generation, Input, encode
from headrace.ops.report import Report
from tests.flow.test_tables import Name, Shelf
from tests.support.flows import FlowWorld
from tests.verify.planting import verifier

pytestmark = pytest.mark.usefixtures("as_for_users")


def first_instead_of_last(decoded: DataFrame, partitions: int) -> DataFrame:
    row = F.min_by(F.struct("row", "partition", "logged_us"), "offset").alias("last")
    return decoded.groupBy("key").agg(row).select("key", "last.*", F.lit(False).alias("moved"))


def reaches_without_applying(state: tables.TableState, messages: Any) -> list[Any]:
    return []


def stays_where_it_is(read_on: Any) -> Any:
    def once(state: tables.TableState, *context: Any) -> None:
        if not state._shown:
            read_on(state, *context)

    return once


def wrong_run(world: FlowWorld) -> Report:
    """Three batches over a table that changes before each."""
    shelf = Shelf(Name)
    world.declare(shelf.app)
    world.write(shelf.things, [Name("t", "0"), Name("t", "1")])
    with world.running(shelf.app, follow=False) as run:
        for version in (2, 3, 4):
            shelf.look(world, "t")
            run.derived()
            world.write(shelf.things, [Name("t", f"{version}")])
    with verifier(run) as one:
        report = one.flow(shelf.see)
    assert (report.verdict, report.exit_code) == ("different", 1), report.lines()
    return report


def test_a_table_that_is_folded_wrong_and_one_that_is_not_brought_forward_are_found(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "latest", first_instead_of_last)
    monkeypatch.setattr(tables.TableState, "_apply", reaches_without_applying)
    report = wrong_run(flow_world)
    missing = [msgspec.json.decode(one.expected["value"]) for one in report.differences if one.expected]
    # The first was folded wrong, the others were not brought forward.
    assert {row["look"]: row["name"] for row in missing} == {"l0": "1", "l1": "2", "l2": "3"}


def test_a_flow_that_joins_with_an_old_version_of_its_table_is_found(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows follow from the offsets that it names; but it should have known more."""
    monkeypatch.setattr(tables.TableState, "_read_on", stays_where_it_is(tables.TableState._read_on))
    monkeypatch.setattr(table_reach, "_VISIBLE_MS", 0)
    report = wrong_run(flow_world)
    assert (report.missing, report.extra, report.different) == (0, 0, 0)
    [finding] = report.findings
    assert "batch 2 knew table" in finding.message
    assert "up to offset 2, and the record at 2 was appended" in finding.message


def test_table_offsets_that_step_back_and_partitions_that_change_are_mistakes(flow_world: FlowWorld) -> None:
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
        key=["look"],
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
        f"batch 2 knew table {log}/1 up to offset 4, and batch 1 before it up to 7",
        f"batch 3 knew 3 partitions of table {log}, and the generation began with 2",
    )
    assert not table_mistakes(cluster, shelf.see, generation, later[0], [])
