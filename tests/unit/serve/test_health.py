"""The health of an app in sentences: every line names the problem and the next step."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.serve.monitor.health import Facts, health_of
from headrace.serve.monitor.runtime_probe import Failure

_NO_LAG = {"records": 0, "bytes": 0, "seconds": 0.0}


def _node(**changed: Any) -> dict[str, Any]:
    defaults = {
        "state": "running",
        "why": "",
        "lag": _NO_LAG,
        "time_to_loss_s": None,
        "cause": False,
        "growing": False,
    }
    return defaults | changed


def _behind(**changed: Any) -> dict[str, Any]:
    return _node(lag={"records": 4_000, "bytes": 9, "seconds": 90.0}, cause=True, growing=True) | changed


_FAILURE = Failure("division by zero", "fix the line", 1, "HR-FLOW-FAILED", "shop.py", 7)
_ALERT = {"alert": "backlog", "text": "flow price: 9 records to read", "when": "lag > 5"}

_CASES: dict[str, tuple[Facts, str, str, str, tuple[str, ...]]] = {
    "all good": (
        Facts("shop", True, {"price": _node()}, {"sales": _node(state="following")}),
        *("good", "all is well: 1 flow and 1 view, and none is behind", "nothing to do", ()),
    ),
    "a flow that has stopped": (
        Facts("shop", True, {"price": _node(state="failed", why="x")}, failures={"flow price": _FAILURE}),
        *("bad", "flow price has stopped: division by zero (shop.py:7)", "fix the line", ("flows", "price")),
    ),
    "a view that differs": (
        Facts(
            "shop", True, views={"sales": _node(state="following", differs=True, verified="NOT AS DERIVED")}
        ),
        *(
            "bad",
            "view sales differs from the log: NOT AS DERIVED",
            "headrace verify MODULE:shop",
            ("views", "sales"),
        ),
    ),
    "a lag that grows": (
        Facts("shop", True, {"price": _behind()}),
        *(
            "warning",
            "flow price is 1 min 30 s behind, with 4,000 records to read, and the number is growing",
            "slowest part",
        ),
        ("flows", "price"),
    ),
    "a lag that will be a loss": (
        Facts("shop", True, {"price": _behind(time_to_loss_s=600.0)}),
        *("bad", "retention deletes the first of them in 10 min", "retention.ms", ("flows", "price")),
    ),
    "a lag that is worked off": (
        Facts("shop", True, {"price": _behind(growing=False)}),
        *(
            "warning",
            "flow price is 1 min 30 s behind, with 4,000 records",
            "it is catching up",
            ("flows", "price"),
        ),
    ),
    "an alert": (
        Facts("shop", True, {"price": _node()}, alerts=[_ALERT]),
        *("warning", "alert backlog: flow price: 9 records to read", "no longer holds: lag > 5", ("alerts",)),
    ),
    "a log that does not respond": (
        Facts(
            "shop", True, {"price": _node(state="waiting", why="x")}, log_error="timed out", log_silent_s=9
        ),
        *("bad", "the log does not respond: timed out", "The numbers are 9 s old", ("topics",)),
    ),
    "a start": (
        Facts("shop", True, {"price": _node(state="starting")}, phase="Spark is being started"),
        *("warning", "starting: Spark is being started", "wait", ()),
    ),
    "a view that waits for its store": (
        Facts("shop", True, views={"sales": _node(state="waiting", why="the disk is full")}),
        *(
            "warning",
            "view sales waits: the disk is full",
            "continues when the cause is fixed",
            ("views", "sales"),
        ),
    ),
    "a view that is not built": (
        Facts("shop", False, views={"sales": _node(state="not built", why="headrace run builds it")}),
        *("warning", "view sales is not built", "headrace run builds it", ("views", "sales")),
    ),
    "the alert checker has stopped": (
        Facts(
            "shop", True, {"price": _node()}, failures={"alerts": Failure("replaced", "stop the other", 1)}
        ),
        *("bad", "alerts has stopped: replaced", "stop the other", ()),
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_each_line_names_the_problem_and_the_next_step(case: str) -> None:
    facts, state, text, next_step, path = _CASES[case]
    health = health_of(facts)
    first = health.lines[0]
    assert (health.state, first.state, first.path) == (state, state, path)
    assert text in first.text
    assert next_step in first.next
    assert all(line.text and line.next for line in health.lines)


def test_the_worst_line_comes_first_and_lines_are_limited() -> None:
    flows = {f"f{number}": _behind() for number in range(200)} | {"dead": _node(state="failed", why="gone")}
    health = health_of(Facts("shop", True, flows))
    assert health.lines[0].text == "flow dead has stopped: gone"
    assert len(health.lines) == 50


def test_a_silent_log_is_the_only_problem_reported() -> None:
    flows = {"price": _behind(state="waiting", why="the log is unreachable")}
    health = health_of(Facts("shop", True, flows, log_error="timed out"))
    assert [line.text for line in health.lines] == ["the log does not respond: timed out"]


def test_a_server_without_a_run_reports_that_it_does_not_see_the_parts() -> None:
    health = health_of(Facts("shop", False, {"price": _node(state="unknown")}))
    assert health.state == "good"
    assert "does not see the running parts" in health.lines[1].text
    assert "headrace run MODULE:shop --serve" in health.lines[1].next
