"""Results of statements that are followed: told again when they are others, each as the statement answers there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.app import App
from tests.serve.everything import things
from tests.serve.http import Http
from tests.serve.result_events import results
from tests.serve.sql_house import asked, written
from tests.support.waiting import until

_SQL = (
    "SELECT a.name, b.number FROM lite_things a JOIN postgres_things b USING (thing_id) WHERE b.thing_id = $1"
)


def _next(told: Iterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    """What comes before is of views that have moved without it, or halfway."""
    for one in told:
        if one["type"] == kind:
            return one
    raise AssertionError(kind)


def test_a_result_is_told_again_when_it_is_another_one(
    sql_http: Http, sql_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_REST_S", 0.01), ("_REST_TIMES", 0.0), ("_LOOK_S", 0.05)):
        monkeypatch.setattr(f"headrace.serve.sql.following.{name}", value)
    was = things(12)[9]
    with results(sql_http, _SQL, "t0009") as told:
        first = next(told)
        assert first["type"] == "result"
        assert first["rows"] == asked(sql_http, _SQL, "t0009")["rows"]
        assert [one["name"] for one in first["columns"]] == ["name", "number"]
        assert set(first["positions"]) == {"lite_things", "postgres_things"}
        # The views move, and the result is the same.
        token = written(sql_http, sql_app, [was])
        same = _next(told, "same")
        assert "rows" not in same
        assert same["cursor"] == first["cursor"]
        assert same["positions"] != first["positions"]
        try:
            written(sql_http, sql_app, [{**was, "name": "another", "number": 77}])
            other = _next(told, "result")
            while other["rows"] != [["another", 77]]:
                # One view may be before the other.
                assert other["rows"] in ([["another", was["number"]]], [[was["name"], 77]])
                other = _next(told, "result")
        finally:
            token = written(sql_http, sql_app, [was])
        assert asked(sql_http, _SQL, "t0009", after=token, wait="20s")["rows"] == first["rows"]
        while (again := _next(told, "result"))["rows"] != first["rows"]:
            pass
        assert again["cursor"] == first["cursor"] != other["cursor"]
    # Who comes back with it is not told it again.
    with results(sql_http, _SQL, "t0009", cursor=again["cursor"]) as told:
        assert next(told)["type"] == "same"
    with results(sql_http, _SQL, "t0009", cursor=other["cursor"]) as told:
        assert next(told)["rows"] == first["rows"]


def test_what_cannot_be_followed_is_refused_before_it_begins(sql_http: Http) -> None:
    for sql, status in (
        ("SELECT 1 FROM not_there", 404),
        ("DELETE FROM lite_things", 400),
        ("SELECT repeat('x', 2000000)", 422),
    ):
        assert sql_http.post("/v1/sql/changes", {"sql": sql}).status == status, sql


def test_only_so_many_follow_results_at_a_time(sql_http: Http) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            next(stack.enter_context(results(sql_http, "SELECT 42")))
        refused = sql_http.post("/v1/sql/changes", {"sql": "SELECT 42"}).expect(429)
        assert refused["code"] == "HR-SERVE-SUBSCRIBERS"
    until(
        lambda: sql_http.post("/v1/sql/changes", {"sql": "SELECT 42"}).status == 200,
        "those who went to leave room",
    )
