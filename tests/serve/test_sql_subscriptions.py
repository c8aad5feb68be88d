"""Followed statements: the server sends the whole result again when it has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from faults.serve.http import Http
from faults.wait import until
from headrace.app import App
from tests.serve.every_store import sample_rows
from tests.serve.result_events import results
from tests.serve.sql_server import run_sql, write_rows

_SQL = (
    "SELECT a.name, b.number FROM lite_things a JOIN postgres_things b USING (thing_id) WHERE b.thing_id = $1"
)


def _next_of_kind(document: Iterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Skip earlier results, which reflect none or only a part of the write."""
    for entry in document:
        if entry["type"] == kind:
            return entry
    raise AssertionError(kind)


def test_a_changed_result_is_sent_again(
    sql_http: Http, sql_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_PAUSE_S_MIN", 0.01), ("_PAUSE_PER_RUN_TIME", 0.0), ("_POLL_S", 0.05)):
        monkeypatch.setattr(f"headrace.serve.sql.subscription.{name}", value)
    original_row = sample_rows(12)[9]
    with results(sql_http, _SQL, "t0009") as response:
        first = next(response)
        assert first["type"] == "result"
        assert first["rows"] == run_sql(sql_http, _SQL, "t0009")["rows"]
        assert [column["name"] for column in first["columns"]] == ["name", "number"]
        assert set(first["positions"]) == {"lite_things", "postgres_things"}
        # The positions of the views advance without a change of the result.
        token = write_rows(sql_http, sql_app, [original_row])
        same = _next_of_kind(response, "same")
        assert "rows" not in same
        assert same["cursor"] == first["cursor"]
        assert same["positions"] != first["positions"]
        try:
            write_rows(sql_http, sql_app, [{**original_row, "name": "another", "number": 77}])
            changed_result = _next_of_kind(response, "result")
            while changed_result["rows"] != [["another", 77]]:
                # One view may be ahead of the other.
                assert changed_result["rows"] in (
                    [["another", original_row["number"]]],
                    [[original_row["name"], 77]],
                )
                changed_result = _next_of_kind(response, "result")
        finally:
            token = write_rows(sql_http, sql_app, [original_row])
        assert run_sql(sql_http, _SQL, "t0009", after=token, wait="20s")["rows"] == first["rows"]
        while (restored := _next_of_kind(response, "result"))["rows"] != first["rows"]:
            pass
        assert restored["cursor"] == first["cursor"] != changed_result["cursor"]
    # A subscriber that resumes with the cursor does not get the same result again.
    with results(sql_http, _SQL, "t0009", cursor=restored["cursor"]) as response:
        assert next(response)["type"] == "same"
    with results(sql_http, _SQL, "t0009", cursor=changed_result["cursor"]) as response:
        assert next(response)["rows"] == first["rows"]


def test_a_statement_that_cannot_be_followed_is_refused_before_the_stream_begins(sql_http: Http) -> None:
    for sql, status in (
        ("SELECT 1 FROM not_there", 404),
        ("DELETE FROM lite_things", 400),
        ("SELECT repeat('x', 2000000)", 422),
    ):
        assert sql_http.post("/v1/sql/changes", {"sql": sql}).status == status, sql


def test_concurrently_followed_statements_are_limited(sql_http: Http) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            next(stack.enter_context(results(sql_http, "SELECT 42")))
        refused = sql_http.post("/v1/sql/changes", {"sql": "SELECT 42"}).expect(429)
        assert refused["code"] == "HR-SERVE-SUBSCRIBERS"
    until(
        lambda: sql_http.post("/v1/sql/changes", {"sql": "SELECT 42"}).status == 200,
        "the closed subscriptions to leave room",
    )
