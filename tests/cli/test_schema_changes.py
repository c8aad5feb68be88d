"""A schema change that the log's records do not fit is refused by every command before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults.servers.server import Server
from headrace.client.cluster import Cluster
from headrace.client.recorded_schemas import owned_versions
from headrace.client.records import read
from tests.cli.runner import Headrace, Result

RIDES = 40
HEAD = """
from dataclasses import dataclass
from headrace import App

@dataclass(frozen=True)
class Ride:
    ride_id: str
    {fields}

app = App("{app}")
rides = app.topic("{topic}", Ride, key="ride_id"{options})
totals = app.topic("{topic}-totals", key="ride_id")

@app.flow(reads=[rides], writes=totals, name="{topic}-sum")
def total(rides):
    return rides.select("ride_id", "meters")

app.view("{topic}-view", rides)
"""
FIELDS = "meters: int"
REQUIRED = "meters: int; city: str"


@dataclass
class Bikes:
    """The app of one test, in versions that differ by their schema."""

    headrace: Headrace
    cluster: Cluster
    topic: str
    folder: Path
    versions: int = 0

    def module(self, fields: str, options: str = "", head: str = "", app: str = "") -> str:
        """Write a version of the app. Each has its own module, because Python caches the code of a module."""
        self.versions += 1
        name = f"bikes{self.versions}"
        text = HEAD.format(
            fields="\n    ".join(fields.split("; ")), app=app or self.topic, topic=self.topic, options=options
        )
        (self.folder / f"{name}.py").write_text(f"{head}\n{text}")
        return f"{name}:app"

    def follow(self, app: str) -> dict[str, Any]:
        [row] = self.headrace.ok("view", "follow", app, f"{self.topic}-view", "--exit", "--json").json
        return dict(row)

    def rows(self, app: str) -> dict[str, Any]:
        found = self.headrace.ok("query", app, f"{self.topic}-view", "--json").json
        return {row["ride_id"]: row for row in found}

    def log(self) -> dict[str, list[Any]]:
        """Return every record of every topic of this test."""
        names = [name for name in self.cluster.metadata().topics if self.topic in name]
        return {name: self._records(name) for name in sorted(names)}

    def _records(self, topic: str) -> list[Any]:
        starts, ends = self.cluster.starts(topic), self.cluster.ends(topic, committed=False)
        ranges = {number: (starts[number], end) for number, end in ends.items()}
        return sorted(
            (message.partition(), message.offset(), message.timestamp(), message.key(), message.value())
            for message in read(self.cluster, topic, ranges, committed=False)
        )

    def produce(self, *values: dict[str, Any]) -> None:
        lines = "".join(f"{value['ride_id']}\t{json.dumps(value)}\n" for value in values)
        self.headrace.ok("produce", self.topic, "-f", "%k\t%v\n", "-q", stdin=lines.encode())


@pytest.fixture
def bikes(
    embedded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Callable[..., str]
) -> Bikes:
    """An app with a filled view."""
    monkeypatch.chdir(tmp_path)
    bikes = Bikes(Headrace(embedded.bootstrap), Cluster(embedded.bootstrap), fresh("rides"), tmp_path)
    bikes.cluster.ensure_topic(bikes.topic, 2)
    bikes.produce(*({"ride_id": f"r{number}", "meters": number} for number in range(RIDES)))
    assert bikes.follow(bikes.module(FIELDS))["applied"] == RIDES
    return bikes


def mistake(result: Result) -> dict[str, Any]:
    assert result.code == 1, result.err
    [found] = json.loads(result.err.splitlines()[-1])["error"]["mistakes"]
    return dict(found)


COMMANDS = (
    "run APP --rebuild-changed --serve off --for 1",
    "flow run APP --for 1",
    "flow rebuild APP TOPIC-sum --yes",
    "view follow APP --exit",
    "view rebuild APP TOPIC-view",
    "check APP --log --skip-flows",
)


def test_a_required_field_is_refused_before_anything_is_written(bikes: Bikes) -> None:
    changed = bikes.module(REQUIRED)
    source = (bikes.folder / "bikes2.py").read_text().splitlines()
    database = bikes.folder / "headrace-data" / f"{bikes.topic}.db"
    log, rows = bikes.log(), database.read_bytes()
    for command in COMMANDS:
        words = command.replace("APP", changed).replace("TOPIC", bikes.topic).split()
        result = bikes.headrace.run(*words, "--json")
        found = result.json[0]["mistakes"][0] if words[0] == "check" else mistake(result)
        assert (result.code, found["code"]) == (1, "HR-APP-HISTORY"), command
        assert found["message"].startswith(
            f"topic '{bikes.topic}': {RIDES} of {RIDES} sampled records do not fit field 'city' of Ride; the first is"
            " in partition 0 at offset 0"
        )
        assert (Path(found["file"]).name, source[found["line"] - 1]) == ("bikes2.py", "    city: str")
        assert "a default" in found["hint"]
        assert "upcast=" in found["hint"]
        assert bikes.log() == log, command
        assert database.read_bytes() == rows, command
    assert len(bikes.rows("bikes1:app")) == RIDES


def test_a_default_is_accepted_and_recorded_as_the_next_version(bikes: Bikes) -> None:
    changed = bikes.module("meters: int; city: str = 'unknown'")
    assert bikes.follow(changed)["dead"] == 0
    assert bikes.rows(changed)["r1"] == {"ride_id": "r1", "meters": 1, "city": "unknown"}
    owner, versions = owned_versions(bikes.cluster, bikes.topic, [bikes.topic])[bikes.topic]
    assert (owner, [version.version for version in versions]) == (bikes.topic, [1, 2])
    before = bikes.log()
    bikes.follow(changed)
    bikes.follow(bikes.module(FIELDS))
    assert bikes.log() == before, "a recorded schema is not recorded again"


def test_invalid_records_of_the_past_do_not_stop_an_unchanged_or_widened_schema(bikes: Bikes) -> None:
    bikes.produce({"ride_id": "bad", "meters": "far"}, {"ride_id": "worse"})
    assert bikes.follow("bikes1:app")["dead"] == 2
    changed = bikes.module("meters: int; city: str = 'unknown'")
    assert bikes.follow(changed)["dead"] == 2
    assert len(bikes.rows(changed)) == RIDES


UPCAST = """
def rename(value):
    if "meters" in value:
        value["kilometers"] = value.pop("meters") / 1000
    return value
"""
BACK = """
def rename(value):
    if "kilometers" in value:
        value["meters"] = int(value.pop("kilometers") * 1000)
    return value
"""


def test_old_and_new_readers_run_side_by_side(bikes: Bikes) -> None:
    renamed = bikes.module("kilometers: float")
    assert mistake(bikes.headrace.run("view", "follow", renamed, "--exit", "--json"))["message"].startswith(
        f"topic '{bikes.topic}': {RIDES} of {RIDES} sampled records do not fit field 'kilometers'"
    )
    renamed = bikes.module("kilometers: float", ", upcast=rename", UPCAST)
    assert bikes.follow(renamed)["dead"] == 0
    bikes.produce({"ride_id": "new", "kilometers": 2.5})
    assert bikes.follow(renamed)["dead"] == 0
    rows = bikes.rows(renamed)
    assert (rows["r7"]["kilometers"], rows["new"]["kilometers"]) == (0.007, 2.5)
    # Another app reads the same records with the old schema. It records nothing.
    old = bikes.module(FIELDS, ", upcast=rename", BACK, app=f"{bikes.topic}-old")
    log = bikes.log()
    assert bikes.follow(old)["dead"] == 0
    rows = bikes.rows(old)
    assert (rows["r7"]["meters"], rows["new"]["meters"]) == (7, 2500)
    assert {name for name in bikes.log() if "schemas" in name} == {f"headrace.schemas.{bikes.topic}"}
    assert bikes.log() == log
    for app in (renamed, old):
        bikes.headrace.ok("verify", app, f"{bikes.topic}-view")
    # The old schema alone does not fit the new records.
    assert mistake(
        bikes.headrace.run(
            "view", "follow", bikes.module(FIELDS, app=f"{bikes.topic}-other"), "--exit", "--json"
        )
    )["message"].startswith(
        f"topic '{bikes.topic}': 1 of {RIDES + 1} sampled records do not fit field 'meters'"
    )


def test_a_change_of_an_upcaster_rebuilds_its_views(bikes: Bikes) -> None:
    renamed = bikes.module("kilometers: float", ", upcast=rename", UPCAST)
    bikes.follow(renamed)
    wrong = bikes.rows(renamed)["r7"]["kilometers"]
    corrected = bikes.module("kilometers: float", ", upcast=rename", UPCAST.replace("1000", "1024"))
    assert bikes.headrace.run("verify", corrected, f"{bikes.topic}-view").code == 1
    bikes.follow(corrected)
    assert bikes.rows(corrected)["r7"]["kilometers"] == 7 / 1024 != wrong
    bikes.headrace.ok("verify", corrected, f"{bikes.topic}-view")


def test_a_topic_that_was_deleted_and_created_again_may_have_another_schema(bikes: Bikes) -> None:
    bikes.headrace.ok("topic", "delete", bikes.topic, "--yes")
    bikes.cluster.ensure_topic(bikes.topic, 1)
    bikes.produce({"ride_id": "a", "meters": 1, "city": "Ulm"})
    assert bikes.follow(bikes.module(REQUIRED))["applied"] == 1
