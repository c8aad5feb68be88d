"""How an app fares, in words: every line says what is wrong, and what to do next."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.serve.live import Failure
from headrace.serve.observed.health import Facts, health_of

_NO_LAG = {"records": 0, "bytes": 0, "seconds": 0.0}


def _node(**changed: Any) -> dict[str, Any]:
    fine = {
        "state": "running",
        "why": "",
        "lag": _NO_LAG,
        "time_to_loss_s": None,
        "cause": False,
        "growing": False,
    }
    return fine | changed


def _behind(**changed: Any) -> dict[str, Any]:
    return _node(lag={"records": 4_000, "bytes": 9, "seconds": 90.0}, cause=True, growing=True) | changed


_FAILURE = Failure("division by zero", "mend the line", 1, "HR-FLOW-FAILED", "shop.py", 7)
_ALERT = {"alert": "backlog", "text": "flow price: 9 records to read", "when": "lag > 5"}

_CASES: dict[str, tuple[Facts, str, str, str, tuple[str, ...]]] = {
    "all good": (
        Facts("shop", True, {"price": _node()}, {"sales": _node(state="following")}),
        *("good", "all is well: 1 flow and 1 view, and nothing is behind", "nothing is to be done", ()),
    ),
    "a part that stopped": (
        Facts("shop", True, {"price": _node(state="failed", why="x")}, failures={"flow price": _FAILURE}),
        *("bad", "flow price has stopped: division by zero (shop.py:7)", "mend the line", ("flows", "price")),
    ),
    "a view that differs": (
        Facts(
            "shop", True, views={"sales": _node(state="following", differs=True, verified="NOT AS DERIVED")}
        ),
        *(
            "bad",
            "view sales is not as derived: NOT AS DERIVED",
            "headrace verify MODULE:shop",
            ("views", "sales"),
        ),
    ),
    "a lag that grows": (
        Facts("shop", True, {"price": _behind()}),
        *(
            "warning",
            "flow price is 1 min 30 s behind, with 4,000 records to read, and more",
            "slowest part",
        ),
        ("flows", "price"),
    ),
    "a lag that will be a loss": (
        Facts("shop", True, {"price": _behind(time_to_loss_s=600.0)}),
        *("bad", "retention takes the first of them in 10 min", "retention.ms", ("flows", "price")),
    ),
    "a lag that is worked off": (
        Facts("shop", True, {"price": _behind(growing=False)}),
        *(
            "warning",
            "flow price is 1 min 30 s behind, with 4,000 records",
            "catching up by itself",
            ("flows", "price"),
        ),
    ),
    "an alert": (
        Facts("shop", True, {"price": _node()}, alerts=[_ALERT]),
        *("warning", "alert backlog: flow price: 9 records to read", "its rule is lag > 5", ("alerts",)),
    ),
    "a log that does not answer": (
        Facts(
            "shop", True, {"price": _node(state="waiting", why="x")}, log_trouble="timed out", log_silent_s=9
        ),
        *("bad", "the log does not answer: timed out", "numbers are those of 9 s ago", ("topics",)),
    ),
    "a start": (
        Facts("shop", True, {"price": _node(state="starting")}, phase="Spark is being started"),
        *("warning", "starting: Spark is being started", "wait", ()),
    ),
    "a store that is waited for": (
        Facts("shop", True, views={"sales": _node(state="waiting", why="the disk is full")}),
        *("warning", "view sales waits: the disk is full", "goes on by itself", ("views", "sales")),
    ),
    "a view that nobody has built": (
        Facts("shop", False, views={"sales": _node(state="not built", why="headrace run builds it")}),
        *("warning", "view sales is not built", "headrace run builds it", ("views", "sales")),
    ),
    "another part": (
        Facts(
            "shop", True, {"price": _node()}, failures={"alerts": Failure("replaced", "stop the other", 1)}
        ),
        *("bad", "alerts has stopped: replaced", "stop the other", ()),
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_what_is_wrong_is_said_with_what_to_do_next(case: str) -> None:
    facts, state, text, following, path = _CASES[case]
    found = health_of(facts)
    first = found.lines[0]
    assert (found.state, first.state, first.path) == (state, state, path)
    assert text in first.text
    assert following in first.next
    assert all(one.text and one.next for one in found.lines)


def test_the_worst_comes_first_and_there_are_never_many_lines() -> None:
    flows = {f"f{number}": _behind() for number in range(200)} | {"dead": _node(state="failed", why="gone")}
    found = health_of(Facts("shop", True, flows))
    assert found.lines[0].text == "flow dead has stopped: gone"
    assert len(found.lines) == 50


def test_while_the_log_is_silent_nobody_else_is_blamed_for_it() -> None:
    flows = {"price": _behind(state="waiting", why="the log cannot be reached")}
    found = health_of(Facts("shop", True, flows, log_trouble="timed out"))
    assert [one.text for one in found.lines] == ["the log does not answer: timed out"]


def test_a_server_without_a_run_says_that_it_does_not_know_whether_parts_run() -> None:
    found = health_of(Facts("shop", False, {"price": _node(state="unknown")}))
    assert found.state == "good"
    assert "not whether the parts run" in found.lines[1].text
    assert "headrace run MODULE:shop --serve" in found.lines[1].next
