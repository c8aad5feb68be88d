"""``headrace check`` reports all mistakes of an app, without a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.servers.server import free_port
from tests.cli.runner import Headrace

HEAD = """
from dataclasses import dataclass
from headrace import App

@dataclass(frozen=True)
class Ride:
    ride_id: str
    meters: int

@dataclass(frozen=True)
class Mixed:
    ride_id: str
    stops: set

app = App("bikes")
"""
RIDES = """
rides = app.topic("rides", Ride, key="ride_id")
app.view("rides", rides)
"""


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Headrace:
    """The command without a broker, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Headrace(f"127.0.0.1:{free_port()}")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write an app. Each has its own module, because Python caches the code of a module."""
    versions = iter(range(100))

    def write(text: str, head: str = HEAD) -> str:
        name = f"checked{next(versions)}"
        (tmp_path / f"{name}.py").write_text(head + text)
        return f"{name}:app"

    return write


def test_all_mistakes_are_reported_in_one_run(headrace: Headrace, write: Callable[[str], str]) -> None:
    app = write(
        """
broken = app.topic("broken", Mixed, key="ride_id")
keyless = app.topic("keyless", Ride, key=7)
rides = app.topic("rides", Ride, key="ride", upcast="rename")
app.view("v", broken)
app.view("v", rides, store="sqlite", cached=-1)
app.alert("a", "lag >", on=3)
"""
    )
    result = headrace.run("check", app, "--json")
    assert result.code == 1
    [document] = result.json
    assert document["ok"] is False
    codes = [(mistake["code"], mistake.get("line")) for mistake in document["mistakes"]]
    assert codes == [
        ("HR-APP-SCHEMA", 10),
        ("HR-APP-ARGUMENT", 18),
        ("HR-APP-ARGUMENT", 19),
        ("HR-APP-ARGUMENT", 21),
        ("HR-APP-ARGUMENT", 21),
        ("HR-APP-ARGUMENT", 22),
        ("HR-APP-KEY", 19),
        ("HR-APP-TWIN-NAMES", 21),
        ("HR-APP-ALERT", 22),
    ]
    text = headrace.run("check", app)
    assert text.code == 1
    assert text.lines[-1] == f"{app} has 9 mistakes"
    assert f"{app.partition(':')[0]}.py:10: Mixed.stops has the type set" in text.out


def test_a_module_that_fails_keeps_the_mistakes_before_the_failure(
    headrace: Headrace, write: Callable[[str], str]
) -> None:
    result = headrace.run(
        "check", write('app.topic("broken", Mixed)\nraise RuntimeError("half")\n'), "--json"
    )
    [document] = result.json
    assert (result.code, document["graph"]) == (1, None)
    assert [mistake["code"] for mistake in document["mistakes"]] == ["HR-APP-SCHEMA", "HR-CLI-APP"]
    assert "RuntimeError: half" in document["mistakes"][1]["message"]


def test_an_app_without_mistakes_has_exit_code_0_and_a_graph(
    headrace: Headrace, write: Callable[[str], str]
) -> None:
    app = write(RIDES)
    assert headrace.ok("check", app).out == f"{app} has no mistakes: 1 topic, 0 flows, 1 view\n"
    [document] = headrace.ok("check", app, "--json").json
    assert document["ok"] is True
    assert {node["kind"] for node in document["graph"]["nodes"]} == {"source", "topic", "view"}


def test_a_file_of_schemas_gates_changes_without_a_log(
    headrace: Headrace, write: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "schemas.json"
    missing = headrace.run("check", write(RIDES), "--schemas", "schemas.json")
    assert (missing.code, "--write-schemas" in missing.err) == (2, True)
    headrace.ok("check", write(RIDES), "--write-schemas")
    first = file.read_bytes()
    headrace.ok("check", write(RIDES), "--schemas", "schemas.json")

    required = write(RIDES, HEAD.replace("meters: int", "meters: int\n    city: str"))
    for options in (("--schemas", "schemas.json"), ("--write-schemas",)):
        refused = headrace.run("check", required, *options, "--json")
        assert refused.code == 1
        [mistake] = refused.json[0]["mistakes"]
        assert (mistake["code"], mistake["line"]) == ("HR-APP-HISTORY", 9)
        assert file.read_bytes() == first

    added = write(RIDES, HEAD.replace("meters: int", 'meters: int\n    city: str = ""'))
    outdated = headrace.run("check", added, "--schemas", "schemas.json")
    assert (outdated.code, "[HR-CHECK-SCHEMAS]" in outdated.out) == (1, True)
    headrace.ok("check", added, "--write-schemas")
    recorded = json.loads(file.read_bytes())
    assert [(item["topic"], item["version"]) for item in recorded["schemas"]] == [("rides", 1), ("rides", 2)]
    # An older version of the app still fits.
    headrace.ok("check", write(RIDES), "--schemas", "schemas.json")
    file.write_bytes(b"not JSON")
    assert "[HR-SCHEMA-RECORD]" in headrace.run("check", added, "--schemas", "schemas.json").err


def test_the_functions_of_flows_are_checked(headrace: Headrace, write: Callable[[str], str]) -> None:
    app = write(
        RIDES
        + """
totals = app.topic("totals", key="ride_id")
@app.flow(reads=[rides], writes=totals)
def total(rides):
    return rides.groupBy("ride_id").agg({"meters": "sum"})
app.alert("a", "lag >")
"""
    )
    result = headrace.run("check", app, "--json")
    assert [mistake["line"] for mistake in result.json[0]["mistakes"]] == [24, 21]
    assert headrace.run("check", app, "--skip-flows", "--json").json[0]["mistakes"][0]["line"] == 24
