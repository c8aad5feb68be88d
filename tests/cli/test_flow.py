"""``headrace flow``, and errors that ``headrace run`` reports before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.runner import Headrace

APP = """
from dataclasses import dataclass
from datetime import datetime
from headrace import App

app = App("small")

@dataclass(frozen=True)
class Fact:
    fact_id: str
    at: datetime

facts = app.topic("facts", Fact, key="fact_id", time="at")
kept = app.topic("kept", key="fact_id")

@app.flow(reads=[facts], writes=kept)
def keep(facts):
    return facts

app.view("kept", kept)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flow_list_includes_flows_that_have_never_run(headrace: Headrace, folder: Path) -> None:
    (folder / "small_listed.py").write_text(APP)
    listed = headrace.call("flow", "list", "small_listed:app", "--json").json
    assert [(row["flow"], row["generation"], row["rows_in"]) for row in listed] == [("keep", None, 0)]


def test_a_missing_app_is_named(headrace: Headrace, folder: Path) -> None:
    result = headrace.run("run", "nowhere_at_all:app")
    assert result.code == 1
    assert "nowhere_at_all" in result.err


def test_a_mistake_in_an_app_is_shown_at_its_line_and_nothing_starts(
    headrace: Headrace, folder: Path
) -> None:
    (folder / "small_wrong.py").write_text(APP.replace('key="fact_id")\n\n@app', ")\n\n@app"))
    result = headrace.run("run", "small_wrong:app", "--data", str(folder / "data"))
    assert result.code == 1
    assert f"{folder / 'small_wrong.py'}:" in result.err
    assert not (folder / "data").exists()


def test_every_mistake_of_an_app_is_in_json_with_its_location(headrace: Headrace, folder: Path) -> None:
    wrong = APP.replace('key="fact_id")\n\n@app', ")\n\n@app").replace('time="at"', 'time="when"')
    (folder / "small_twice_wrong.py").write_text(wrong)
    result = headrace.run("run", "small_twice_wrong:app", "--data", str(folder / "data"), "--json")
    assert (result.code, result.out) == (1, "")
    document = json.loads(result.err)["error"]
    assert (document["code"], len(document["mistakes"])) == ("HR-APP-MISTAKES", 2)
    lines = wrong.splitlines()
    for mistake, words in zip(document["mistakes"], ("when", "key"), strict=True):
        assert mistake["code"].startswith("HR-APP-")
        assert mistake["file"] == str(folder / "small_twice_wrong.py")
        assert "app.topic(" in lines[mistake["line"] - 1]
        assert words in mistake["message"]
        assert mistake["hint"]


def test_the_error_for_an_unknown_flow_lists_the_flows_of_the_app(headrace: Headrace, folder: Path) -> None:
    (folder / "small_unknown.py").write_text(APP)
    result = headrace.run("flow", "rebuild", "small_unknown:app", "nothing", "--yes")
    assert result.code == 1
    assert "nothing" in result.err
    assert "keep" in result.err
