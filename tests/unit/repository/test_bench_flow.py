"""What the benchmark of flows makes of what it sees: which parts, which events, which figures. None of it is timed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.decoding import Decoded
from bench.driver import Task
from bench.flow import PARTS, chosen
from bench.formats import note_decoded
from bench.measured import Measured
from bench.pace import Mark, cost, watch
from bench.plan import Plan
from bench.profile import means, read_triggers
from bench.report import comparison_row
from bench.sold import records, some_rows
from bench.state import events_of, stages
from bench.store_cases import CASES
from bench.stores import spent_s
from bench.trigger import rows_of
from headrace.client.cluster import Cluster
from tests.support.embedded import start_headrace


def checkpoint(folder: Path, batches: list[tuple[int, float]]) -> None:
    """As Spark leaves one: where each batch ends, and when it was done."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, (end, moment) in enumerate(batches):
        ends = json.dumps({"orders": {"0": end // 2, "1": end - end // 2}})
        (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{ends}\n")
        commit = folder / "commits" / str(number)
        commit.write_text("v1\n{}")
        os.utime(commit, (moment, moment))


def used(step_s: float) -> Iterator[float]:
    spent = 0.0
    while True:
        yield spent
        spent += step_s


def test_a_part_is_measured_when_it_is_named_or_when_all_are() -> None:
    assert chosen(None, quick=False) == list(PARTS)
    assert chosen(["many", "stores"], quick=True) == ["stores", "many"]
    assert set(PARTS) - set(chosen(None, quick=True)) == {"start", "recovery", "memory", "cluster"}


def test_a_task_reaches_its_driver_as_it_is(tmp_path: Path) -> None:
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
    assert Task.of(task.command()[-1]) == task
    assert (task.settings.spark.state, dict(task.settings.spark.conf)) == ("rocksdb", {"a": "b"})


def test_the_pace_is_that_after_the_first_fifth(tmp_path: Path) -> None:
    checkpoint(tmp_path / "flow" / "g1", [(100, 10.0), (200, 20.0), (1_000, 24.0)])
    cpu = used(2.0)
    pace = watch(tmp_path, 1_000, lambda: next(cpu), lambda: None)
    assert (pace.events, pace.rate, pace.cpu_s, pace.batch) == (800, 200, 2.0 / 800 * 1e6, 2)


def test_the_events_of_all_queries_count_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        checkpoint(tmp_path / name / "g1", [(200, 10.0), (1_000, 20.0)])
    cpu = used(1.0)
    pace = watch(tmp_path, 2_000, lambda: next(cpu), lambda: None, queries=2)
    assert (pace.events, pace.rate) == (1_600, 160)


def test_what_came_in_one_batch_says_nothing(tmp_path: Path) -> None:
    checkpoint(tmp_path / "flow" / "g1", [(1_000, 10.0)])
    with pytest.raises(SystemExit, match="nothing to go by"):
        watch(tmp_path, 1_000, lambda: 0.0, lambda: None)


def test_a_stretch_costs_what_its_own_batches_have_used() -> None:
    seen = [Mark(n, 10.0 + n, 100 * (n + 1), n * n) for n in range(6)]
    found = cost(seen, 250, 500)
    assert (found.cpu_s, found.rate, list(found.batches)) == (12 / 200 * 1e6, 100, [3, 4])
    with pytest.raises(SystemExit, match="smaller"):
        cost(seen, 250, 350)


def test_state_has_the_size_that_is_measured_when_it_is() -> None:
    sizes, count = (95, 1_000), 20
    told = [json.loads(value) for _, value in events_of(sizes, count)]
    listed = stages(sizes, count)
    assert (listed[-1].high, len({one["order_id"] for one in told})) == (len(told), len(told))
    there: set[int] = set()
    at = 0
    for stage in listed:
        for one in told[at : stage.low]:
            there |= set(range(int(one["product_id"]), int(one["product_id"]) + one["quantity"]))
        assert there == set(range(stage.keys))
        measured = told[stage.low : stage.high]
        assert len(measured) == count
        assert all(one["quantity"] == 1 and int(one["product_id"]) in there for one in measured)
        at = stage.high


def told(batch: int, rows: int, add: int, **more: Any) -> dict[str, Any]:
    spent = {"addBatch": add, "walCommit": 10, "commitOffsets": 20, "triggerExecution": add + 30}
    return {"batchId": batch, "numInputRows": rows, "durationMs": spent, "stateOperators": [], **more}


def test_a_trigger_is_told_by_its_parts(tmp_path: Path) -> None:
    state = {"commitTimeMs": 7, "numRowsTotal": 5, "memoryUsedBytes": 9}
    lines = [told(0, 3, 100, stateOperators=[state, state]), told(1, 0, 1), told(2, 1, 200)]
    (tmp_path / "triggers.json").write_text("\n".join(map(json.dumps, lines)))
    first, last = read_triggers(tmp_path / "triggers.json")
    assert (first.batch, last.batch, first.state_rows, first.state_bytes) == (0, 2, 10, 18)
    found = means([first, last])
    assert (found["addBatch"], found["checkpoint files"], found["state commit"]) == (150, 30, 7)
    rows = rows_of([first], [last])
    assert rows[0] == ("triggerExecution", 130, 230)
    # What one of the two does not have at all still makes a row.
    assert ("state commit", 14, 0.1) in rows


def test_formats_are_told_with_and_without_the_reading(tmp_path: Path) -> None:
    class Book:
        measured = Measured()

    spent = {"read JSON": [1.0], "read Avro": [0.5], "strict": [4.0], "from_json": [3.0], "from_avro": [1.5]}
    found = Decoded(spent, 200 * 2**20, 100 * 2**20, 1_000_000)
    note_decoded(Book(), found, {"json": 50.0, "avro": 40.0})  # type: ignore[arg-type]
    rows = [comparison_row(row) for row in Book.measured.rows()]
    assert [(row["us"], row["them"]) for row in rows] == [
        (200, 100),
        (50, 40),
        (4, 1.5),
        (3, 1),
        (4, 3),
        (3, 2),
    ]


def test_a_follower_stores_what_a_bulk_load_does(tmp_path: Path) -> None:
    """In SQLite; each way refuses to be timed when rows are missing."""
    rows = some_rows(300)
    server = start_headrace(tmp_path / "broker")
    try:
        cluster = Cluster(server.bootstrap)
        cluster.ensure_topic("sold", 1)
        producer = cluster.producer()
        for key, value in records(rows):
            producer.produce("sold", value, key)
        producer.flush(30)
        for who in ("load", "fill", "follow"):
            (tmp_path / who).mkdir()
            assert spent_s(CASES["sqlite"], who, rows, tmp_path / who, cluster) > 0
    finally:
        server.stop()


def test_a_quick_plan_is_a_little_of_the_full_one() -> None:
    quick, full = Plan.quick(), Plan.full(3, 1.0)
    assert full.state_keys == (100_000, 1_000_000, 10_000_000)
    assert (full.flows, quick.is_quick, full.is_quick) == (20, True, False)
    assert all(few < many for few, many in zip(quick.state_keys, full.state_keys, strict=True))
