"""The texts of a verification: its next steps, and the estimated time left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace.app_argument
from headrace.cli.verify import estimate_left_s
from headrace.ops.verify.report import Finding, Report

ITEMS = [("view", "a"), ("view", "b"), ("flow", "a")]


@pytest.mark.parametrize(
    ("facts", "commands"),
    [
        ({"what": "view", "different": 0}, []),
        ({"what": "view", "different": 1}, ["headrace view rebuild shop:app name"]),
        (
            {"what": "view", "missing": 1, "flow": "sum"},
            [
                "headrace verify shop:app --flow sum",
                "headrace view rebuild shop:app name",
                "headrace flow rebuild shop:app sum",
            ],
        ),
        (
            {"what": "view", "flow": "sum", "findings": [Finding("function", "changed")]},
            ["headrace flow rebuild shop:app sum"],
        ),
        ({"what": "flow", "flow": "", "extra": 2}, ["headrace flow rebuild shop:app name"]),
    ],
)
def test_a_difference_names_commands_that_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], commands: list[str]
) -> None:
    monkeypatch.setattr(headrace.app_argument, "_argument", "shop:app")
    report = Report(app="shop", name="name", topic="topic", **facts)
    report.judge()
    assert [step.partition(": ")[2] for step in report.next_steps()] == commands
    assert [line for line in report.lines() if "next step" in line] == [
        f"  next step: {step}" for step in report.next_steps()
    ]


@given(
    st.lists(st.sampled_from(ITEMS), unique=True),
    st.dictionaries(st.sampled_from(ITEMS), st.floats(0.1, 100)),
    st.floats(0, 1_000),
)
def test_the_time_left_is_the_time_of_what_remains(
    remaining: list[tuple[str, str]], last_s: dict[tuple[str, str], float], elapsed_s: float
) -> None:
    left_s = estimate_left_s(remaining, last_s, elapsed_s)
    if not last_s or not remaining:
        assert left_s is None
        return
    average_s = sum(last_s.values()) / len(last_s)
    expected_s = [last_s.get(item, average_s) for item in remaining]
    expected_s[0] = max(0.0, expected_s[0] - elapsed_s)
    assert (left_s or 0.0) == pytest.approx(sum(expected_s))
