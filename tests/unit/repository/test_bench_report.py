"""Results of benchmarks and fault runs: their fields, and what counts as better."""

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
def test_a_higher_rate_and_a_lower_use_of_memory_or_time_are_better(unit: str, ratio: float) -> None:
    assert comparison_row(RATE | {"us": 190, "them": 380, "unit": unit})["ratio"] == ratio


@pytest.mark.parametrize(("us", "met"), [(0.9999, False), (1.0, True), (1.1, True)])
def test_a_goal_is_compared_with_the_figure_before_rounding(us: float, met: bool) -> None:
    assert comparison_row(RATE | {"us": us})["met"] is met


def test_rounds_give_medians_and_their_spread() -> None:
    row = comparison_row(RATE | {"us": [4.0, 1.0, 2.0], "them": [2.0, 1.0, 4.0]})
    assert (row["us"], row["them"], row["ratio"], row["spread"]) == (2, 2, 1, [0.5, 2])
    assert list(row) == ["name", "peer", "us", "them", "unit", "ratio", "spread", "goal", "met"]
    slower = comparison_row(RATE | {"unit": "ms", "us": [1.0, 4.0, 4.0], "them": [2.0, 2.0, 2.0]})
    assert (slower["ratio"], slower["spread"]) == (0.5, [0.5, 2])


@pytest.mark.parametrize(("us", "them"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], 1.0)])
def test_sides_with_different_numbers_of_rounds_are_refused(us: Any, them: Any) -> None:
    with pytest.raises(ValueError):
        comparison_row(RATE | {"us": us, "them": them})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_figure_that_is_not_positive_and_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite number above zero"):
        comparison_row(RATE | {"us": value})


@pytest.mark.parametrize("change", [{"unit": "furlongs"}, {"name": ""}, {"us": "fast"}, {"ratio": 2.0}])
def test_an_invalid_comparison_row_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unit|must be a|has the keys"):
        comparison_row(RATE | change)


def test_a_row_without_a_goal_has_a_ratio_and_no_verdict() -> None:
    row = comparison_row(RATE | {"us": [4.0, 2.0], "them": [2.0, 2.0], "goal": None})
    assert (row["ratio"], row["spread"], row["goal"], row["met"]) == (1.5, [1, 2], None, None)
    with pytest.raises(ValueError, match="must be a"):
        comparison_row(RATE | {"name": "", "goal": None})


def test_rows_of_an_earlier_run_stay_unless_this_run_has_the_same_name(tmp_path: Path) -> None:
    write_results("flow", [RATE | {"name": name} for name in ("a", "b")], tmp_path)
    new_rows = [RATE | {"name": name, "us": 4.0} for name in ("b", "c")]
    write_results("flow", new_rows, tmp_path, earlier=earlier_rows("flow", tmp_path))
    assert [(row["name"], row["ratio"]) for row in earlier_rows("flow", tmp_path)] == [
        ("a", 2),
        ("b", 4),
        ("c", 4),
    ]
    write_results("flow", new_rows, tmp_path)
    assert [row["name"] for row in earlier_rows("flow", tmp_path)] == ["b", "c"]
    assert earlier_rows("log", tmp_path) == []


def test_two_rows_with_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two rows have the same name"):
        write_results("log", [RATE, RATE], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_replaces_its_own_row_and_leaves_the_others(tmp_path: Path) -> None:
    write_faults([X1, X1 | {"fault": "X14"}], tmp_path)
    path = write_faults([X1 | {"fault": "X2"}, X1 | {"runs": 200}], tmp_path)
    rows = json.loads(path.read_text())
    assert [(row["fault"], row["runs"]) for row in rows] == [("X1", 200), ("X2", 20), ("X14", 20)]
    assert rows[0] == X1 | {"runs": 200, "peak_rss_mb": 31.3, "seeds": [3, 7]}


def test_an_earlier_file_with_another_layout_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('[{"fault": "X1"}]')
    with pytest.raises(ValueError, match="must have the keys"):
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
def test_an_invalid_fault_row_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"fault|run|must be a|must have the keys|failures|covered code"):
        fault_row(X1 | change)


def test_the_description_of_the_machine_has_no_host_name(tmp_path: Path) -> None:
    write_machine(tmp_path)
    text = (tmp_path / "machine.json").read_text()
    machine = json.loads(text)
    assert machine == describe_machine()
    assert all(machine.values())
    assert socket.gethostname() not in machine.values()
    assert str(Path.home()) not in text


def test_the_nearest_mount_point_determines_the_file_system() -> None:
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
