"""The benchmark of flows: which parts it runs, which events it counts, how it computes figures. Nothing is timed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.flow.context import Plan
from bench.flow.decoders import Decoded
from bench.flow.driver import Task
from bench.flow.formats import note_figures
from bench.flow.pace import Mark, cost, watch
from bench.flow.sample_rows import records, sample_rows
from bench.flow.small_batch import phases
from bench.flow.state import events_of, stages
from bench.flow.store_cases import CASES
from bench.flow.stores import fill_s
from bench.flow.suite import PARTS, selected_parts
from bench.flow.trigger_profile import means, read_triggers
from bench.report import comparison_row
from bench.session import Figures
from faults.servers.headrace_broker import start_headrace
from headrace.client.cluster import Cluster


def checkpoint(folder: Path, batches: list[tuple[int, float]]) -> None:
    """Write a checkpoint like Spark's, with the end offset and the commit time of each batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, (end, moment) in enumerate(batches):
        ends = json.dumps({"orders": {"0": end // 2, "1": end - end // 2}})
        (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{ends}\n")
        commit = folder / "commits" / str(number)
        commit.write_text("v1\n{}")
        os.utime(commit, (moment, moment))


def cpu_readings(step_s: float) -> Iterator[float]:
    cpu_s = 0.0
    while True:
        yield cpu_s
        cpu_s += step_s


def test_only_selects_parts_and_all_parts_are_the_default() -> None:
    assert selected_parts(None, quick=False) == list(PARTS)
    assert selected_parts(["many", "stores"], quick=True) == ["stores", "many"]
    assert set(PARTS) - set(selected_parts(None, quick=True)) == {"start", "recovery", "memory", "cluster"}


def test_a_task_reaches_its_driver_unchanged(tmp_path: Path) -> None:
    task = Task(
        "flow",
        "kept",
        "127.0.0.1:9",
        "in",
        "out",
        tmp_path,
        5,
        2,
        spark={"state": "rocksdb", "conf": {"a": "b"}},
    )
    assert Task.parse(task.command()[-1]) == task
    assert (task.settings.spark.state, dict(task.settings.spark.conf)) == ("rocksdb", {"a": "b"})


def test_the_pace_excludes_the_first_fifth_of_the_events(tmp_path: Path) -> None:
    checkpoint(tmp_path / "flow" / "g1", [(100, 10.0), (200, 20.0), (1_000, 24.0)])
    cpu = cpu_readings(2.0)
    pace = watch(tmp_path, 1_000, lambda: next(cpu), lambda: None)
    assert (pace.events, pace.rate, pace.cpu_s, pace.batch) == (800, 200, 2.0 / 800 * 1e6, 2)


def test_the_pace_counts_the_events_of_all_queries(tmp_path: Path) -> None:
    for name in ("one", "two"):
        checkpoint(tmp_path / name / "g1", [(200, 10.0), (1_000, 20.0)])
    cpu = cpu_readings(1.0)
    pace = watch(tmp_path, 2_000, lambda: next(cpu), lambda: None, queries=2)
    assert (pace.events, pace.rate) == (1_600, 160)


def test_a_single_batch_has_no_pace(tmp_path: Path) -> None:
    checkpoint(tmp_path / "flow" / "g1", [(1_000, 10.0)])
    with pytest.raises(SystemExit, match="consumed at once"):
        watch(tmp_path, 1_000, lambda: 0.0, lambda: None)


def test_the_cost_of_a_range_is_the_cpu_of_its_own_batches() -> None:
    marks = [Mark(n, 10.0 + n, 100 * (n + 1), n * n) for n in range(6)]
    range_cost = cost(marks, 250, 500)
    assert (range_cost.cpu_s, range_cost.rate, list(range_cost.batches)) == (12 / 200 * 1e6, 100, [3, 4])
    with pytest.raises(SystemExit, match="smaller"):
        cost(marks, 250, 350)


def test_state_has_the_planned_size_when_it_is_measured() -> None:
    sizes, count = (95, 1_000), 20
    events = [json.loads(value) for _, value in events_of(sizes, count)]
    all_stages = stages(sizes, count)
    assert (all_stages[-1].high, len({event["order_id"] for event in events})) == (len(events), len(events))
    keys: set[int] = set()
    at = 0
    for stage in all_stages:
        for event in events[at : stage.low]:
            keys |= set(range(int(event["product_id"]), int(event["product_id"]) + event["quantity"]))
        assert keys == set(range(stage.keys))
        measured = events[stage.low : stage.high]
        assert len(measured) == count
        assert all(event["quantity"] == 1 and int(event["product_id"]) in keys for event in measured)
        at = stage.high


def trigger(batch: int, rows: int, add: int, **more: Any) -> dict[str, Any]:
    spent = {"addBatch": add, "walCommit": 10, "commitOffsets": 20, "triggerExecution": add + 30}
    return {"batchId": batch, "numInputRows": rows, "durationMs": spent, "stateOperators": [], **more}


def test_triggers_are_read_with_their_phases(tmp_path: Path) -> None:
    state = {"commitTimeMs": 7, "numRowsTotal": 5, "memoryUsedBytes": 9}
    lines = [trigger(0, 3, 100, stateOperators=[state, state]), trigger(1, 0, 1), trigger(2, 1, 200)]
    (tmp_path / "triggers.json").write_text("\n".join(map(json.dumps, lines)))
    first, last = read_triggers(tmp_path / "triggers.json")
    assert (first.batch, last.batch, first.state_rows, first.state_bytes) == (0, 2, 10, 18)
    phases_ms = means([first, last])
    assert (phases_ms["addBatch"], phases_ms["checkpoint files"], phases_ms["state commit"]) == (150, 30, 7)
    rows = phases([first], [last])
    assert rows[0] == ("triggerExecution", 130, 230)
    # A phase that only one side has gets a row too.
    assert ("state commit", 14, 0.1) in rows


def test_formats_are_reported_with_and_without_the_cost_of_reading(tmp_path: Path) -> None:
    class FakeContext:
        figures = Figures()

    spent = {"read JSON": [1.0], "read Avro": [0.5], "strict": [4.0], "from_json": [3.0], "from_avro": [1.5]}
    decoded = Decoded(spent, 200 * 2**20, 100 * 2**20, 1_000_000)
    note_figures(FakeContext(), decoded, {"json": 50.0, "avro": 40.0})  # type: ignore[arg-type]
    rows = [comparison_row(row) for row in FakeContext.figures.rows()]
    assert [(row["us"], row["them"]) for row in rows] == [
        (200, 100),
        (50, 40),
        (4, 1.5),
        (3, 1),
        (4, 3),
        (3, 2),
    ]


def test_a_follower_stores_the_same_rows_as_a_bulk_load(tmp_path: Path) -> None:
    """The store is SQLite. ``fill_s`` raises an error if rows are missing."""
    rows = sample_rows(300)
    server = start_headrace(tmp_path / "broker")
    try:
        cluster = Cluster(server.bootstrap)
        cluster.ensure_topic("sold", 1)
        producer = cluster.producer()
        for key, value in records(rows):
            producer.produce("sold", value, key)
        producer.flush(30)
        for method in ("load", "fill", "follow"):
            (tmp_path / method).mkdir()
            assert fill_s(CASES["sqlite"], method, rows, tmp_path / method, cluster) > 0
    finally:
        server.stop()


def test_a_quick_plan_is_smaller_than_the_full_plan() -> None:
    quick, full = Plan.quick(), Plan.full(3, 1.0)
    assert full.state_keys == (100_000, 1_000_000, 10_000_000)
    assert (full.flows, quick.is_quick, full.is_quick) == (20, True, False)
    assert all(few < many for few, many in zip(quick.state_keys, full.state_keys, strict=True))
