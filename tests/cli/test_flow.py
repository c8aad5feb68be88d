"""``headrace flow``, and errors that ``headrace run`` reports before anything starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.client.cluster import Cluster
from headrace.model.progress import Driver, Generation, encode
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


def test_flow_run_uses_a_running_log_and_never_starts_one(headrace: Headrace, folder: Path) -> None:
    (folder / "small_alone.py").write_text(APP)
    env = {"HEADRACE_BOOTSTRAP_SERVERS": "", "HEADRACE_LOG__LISTEN": "127.0.0.1:1"}
    result = headrace.run("flow", "run", "small_alone:app", "--data", str(folder / "data"), env=env)
    assert (result.code, result.out) == (3, "")
    assert "no broker responds at 127.0.0.1:1" in result.err
    assert not (folder / "data").exists()


def test_a_rebuild_without_a_terminal_names_the_process_that_runs_the_flow_and_needs_yes(
    headrace: Headrace, folder: Path, fresh: Callable[..., str]
) -> None:
    name = fresh("keep")
    (folder / "small_rebuilt.py").write_text(APP.replace("writes=kept)", f"writes=kept, name={name!r})"))
    cluster = Cluster(headrace.bootstrap)
    progress = f"small.{name}.progress"
    cluster.ensure_topic(progress, 1)

    def opened_by(pid: int, host: str) -> str:
        record = Generation(
            app="small",
            flow=name,
            generation=1,
            fingerprint="f1",
            inputs=[],
            output="kept",
            output_id="id",
            key=["fact_id"],
            schema=[],
            checkpoint="c1",
            started_ms=0,
            driver=Driver("d", host, pid, time.time_ns() // 1_000_000),
        )
        key, value = encode(record)
        producer = cluster.producer()
        producer.produce(progress, value, key)
        producer.flush(30)
        refused = headrace.run("flow", "rebuild", "small_rebuilt:app", name)
        assert (refused.code, refused.out) == (1, "")
        assert "stdin is not a terminal" in refused.err
        assert "pass --yes to confirm (-y)" in refused.err
        return refused.err

    here = socket.gethostname()
    assert (
        f"process {os.getpid()} on this machine runs {name}: there, it derives the new generation"
        in opened_by(os.getpid(), here)
    )
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert "process" not in opened_by(ended.pid, here)
    assert f"process 7 on elsewhere last ran {name}: if it still runs, it derives" in opened_by(
        7, "elsewhere"
    )
    assert cluster.ends(progress) == {0: 3}
