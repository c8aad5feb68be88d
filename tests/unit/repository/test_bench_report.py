"""Results of benchmarks and fault runs: their shape, and what counts as better."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from bench.machine import describe_machine, filesystem_of, write_machine
from bench.report import comparison_row, earlier_rows, fault_row, write_faults, write_results

RATE = {"name": "produce", "peer": "Apache Kafka 4.3", "us": 2.0, "them": 1.0, "unit": "msg/s", "goal": 1.0}
X1 = {
    "fault": "X1",
    "held": True,
    "runs": 20,
    "hits": 19,
    "lost": 0,
    "duplicated": 0,
    "peak_rss_mb": 31.26,
    "seeds": [7, 3, 7],
    "caught_unprotected": True,
    "failures": [],
    "commit": "c0ffee",
    "date": "2026-03-01",
    "code": "0123456789abcdef",
    "covers": ["src/headrace/log"],
}


def test_a_comparison_is_written_with_its_ratio_and_verdict(tmp_path: Path) -> None:
    path = write_results("log", [RATE | {"us": 558_123.4, "them": 1_080_000, "goal": 0.5}], tmp_path)
    assert path == tmp_path / "log.json"
    assert json.loads(path.read_text()) == [
        {
            "name": "produce",
            "peer": "Apache Kafka 4.3",
            "us": 558123,
            "them": 1080000,
            "unit": "msg/s",
            "ratio": 0.517,
            "goal": 0.5,
            "met": True,
        }
    ]


@pytest.mark.parametrize(("unit", "ratio"), [("msg/s", 0.5), ("MB/s", 0.5), ("MB", 2), ("ms", 2)])
def test_half_the_rate_is_half_as_good_and_half_the_memory_twice(unit: str, ratio: float) -> None:
    assert comparison_row(RATE | {"us": 190, "them": 380, "unit": unit})["ratio"] == ratio


@pytest.mark.parametrize(("us", "met"), [(0.9999, False), (1.0, True), (1.1, True)])
def test_a_goal_is_met_by_the_figure_and_not_by_its_rounding(us: float, met: bool) -> None:
    assert comparison_row(RATE | {"us": us})["met"] is met


def test_rounds_give_medians_and_how_far_they_lie_apart() -> None:
    row = comparison_row(RATE | {"us": [4.0, 1.0, 2.0], "them": [2.0, 1.0, 4.0]})
    assert (row["us"], row["them"], row["ratio"], row["spread"]) == (2, 2, 1, [0.5, 2])
    assert list(row) == ["name", "peer", "us", "them", "unit", "ratio", "spread", "goal", "met"]
    slower = comparison_row(RATE | {"unit": "ms", "us": [1.0, 4.0, 4.0], "them": [2.0, 2.0, 2.0]})
    assert (slower["ratio"], slower["spread"]) == (0.5, [0.5, 2])


@pytest.mark.parametrize(("us", "them"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], 1.0)])
def test_rounds_that_do_not_pair_up_are_refused(us: Any, them: Any) -> None:
    with pytest.raises(ValueError):
        comparison_row(RATE | {"us": us, "them": them})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_figure_that_was_not_measured_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite number above zero"):
        comparison_row(RATE | {"us": value})


@pytest.mark.parametrize("change", [{"unit": "furlongs"}, {"name": ""}, {"us": "fast"}, {"ratio": 2.0}])
def test_a_row_that_cannot_be_judged_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unit|must be a|has the keys"):
        comparison_row(RATE | change)


def test_a_row_without_a_goal_shows_its_ratio_and_judges_nothing() -> None:
    row = comparison_row(RATE | {"us": [4.0, 2.0], "them": [2.0, 2.0], "goal": None})
    assert (row["ratio"], row["spread"], row["goal"], row["met"]) == (1.5, [1, 2], None, None)
    with pytest.raises(ValueError, match="must be a"):
        comparison_row(RATE | {"name": "", "goal": None})


def test_rows_of_an_earlier_run_stay_where_this_one_has_none_of_their_name(tmp_path: Path) -> None:
    write_results("flow", [RATE | {"name": name} for name in ("a", "b")], tmp_path)
    fresh = [RATE | {"name": name, "us": 4.0} for name in ("b", "c")]
    write_results("flow", fresh, tmp_path, beside=earlier_rows("flow", tmp_path))
    assert [(row["name"], row["ratio"]) for row in earlier_rows("flow", tmp_path)] == [
        ("a", 2),
        ("b", 4),
        ("c", 4),
    ]
    write_results("flow", fresh, tmp_path)
    assert [row["name"] for row in earlier_rows("flow", tmp_path)] == ["b", "c"]
    assert earlier_rows("log", tmp_path) == []


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no two of one name"):
        write_results("log", [RATE, RATE], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_replaces_its_own_row_and_leaves_the_others(tmp_path: Path) -> None:
    write_faults([X1, X1 | {"fault": "X14"}], tmp_path)
    path = write_faults([X1 | {"fault": "X2"}, X1 | {"runs": 200}], tmp_path)
    rows = json.loads(path.read_text())
    assert [(row["fault"], row["runs"]) for row in rows] == [("X1", 200), ("X2", 20), ("X14", 20)]
    assert rows[0] == X1 | {"runs": 200, "peak_rss_mb": 31.3, "seeds": [3, 7]}


def test_an_earlier_file_of_another_shape_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('[{"fault": "X1"}]')
    with pytest.raises(ValueError, match="has the keys"):
        write_faults([X1], tmp_path)
    assert path.read_text() == '[{"fault": "X1"}]'


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"fault": "kill"},
            {"runs": 0},
            {"lost": -1},
            {"seeds": []},
            {"caught_unprotected": 1},
            {"more": 1},
        ),
        *({"held": False}, {"failures": [{"seed": 1}]}, {"commit": ""}, {"covers": []}),
    ],
)
def test_a_fault_row_that_says_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"fault|run|must be a|has the keys|covers"):
        fault_row(X1 | change)


def test_the_machine_is_described_without_being_named(tmp_path: Path) -> None:
    write_machine(tmp_path)
    text = (tmp_path / "machine.json").read_text()
    machine = json.loads(text)
    assert machine == describe_machine()
    assert all(machine.values())
    assert socket.gethostname() not in machine.values()
    assert str(Path.home()) not in text


def test_the_nearest_mount_tells_the_file_system() -> None:
    mounts = "\n".join(
        [
            "1 0 8:1 / / rw - ext4 /dev/a rw",
            "2 1 0:5 / /tmp rw,nosuid - tmpfs tmpfs rw",
            r"3 1 0:6 / /tmp/a\040b rw - xfs /dev/b rw",
        ]
    )
    assert filesystem_of(Path("/tmp/data"), mounts) == "tmpfs"
    assert filesystem_of(Path("/tmp/a b/data"), mounts) == "xfs"
    assert filesystem_of(Path("/srv/data"), mounts) == "ext4"
