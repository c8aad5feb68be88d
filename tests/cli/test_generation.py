"""``headrace generation`` and ``headrace view switch --back``, with a flow whose records are written by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.committed_records import committed
from headrace.client.cluster import Cluster
from headrace.client.generations_writer import GenerationsWriter
from headrace.model.declarations import Flow
from headrace.model.generations import Entry
from headrace.ops.verify.report import Report, save_report
from tests.cli.runner import Headrace
from tests.support.generations import begin_deriving, derive_batch, first_entry

APP = """
from dataclasses import dataclass
from headrace import App

app = App("NAME")

@dataclass(frozen=True)
class Ride:
    bike: str
    minutes: int

rides = app.topic("NAME-rides", Ride, key="bike")
bikes = app.table("NAME-bikes", Ride, key="bike")

@app.flow(reads=[rides], writes=bikes, name="NAME-flow")
def flow(rides):
    return rides

app.view("NAME_bikes", bikes)
"""


@dataclass
class RebuiltFlow:
    """A flow with two generations that have read the same input."""

    headrace: Headrace
    cluster: Cluster
    folder: Path
    name: str

    def __post_init__(self) -> None:
        module = self.name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(APP.replace("NAME", self.name))
        self.app = f"{module}:app"
        from headrace.cli.app_loader import load_app

        self.flow: Flow = load_app(self.app).flows[0]
        self.topic = self.flow.writes.name

    def write(self, entry: Entry, rows: Mapping[str, int]) -> None:
        """Write a generation and its only batch, as its driver would."""
        begin_deriving(self.cluster, self.name, self.flow, entry)
        derive_batch(
            self.cluster, self.flow, entry, {bike: {"bike": bike, "minutes": n} for bike, n in rows.items()}
        )

    def rows(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for message in committed(self.cluster.bootstrap, self.topic):
            key = message.key().decode()
            if message.value() is None:
                found.pop(key, None)
            else:
                found[key] = json.loads(message.value())["minutes"]
        return found

    def roles(self) -> dict[int, str]:
        listed = self.headrace.run("generation", "list", self.app, "--json")
        return {row["generation"]: row["role"] for row in listed.json}


@pytest.fixture
def rebuilt(
    headrace: Headrace, fresh: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RebuiltFlow:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    flow = RebuiltFlow(headrace, Cluster(headrace.bootstrap), tmp_path, fresh("rental"))
    flow.write(first_entry(flow.flow), {"b1": 1, "b2": 2, "b3": 3})
    with GenerationsWriter(flow.cluster, flow.flow) as writer:
        second = writer.begin_generation("new", "requested")
    flow.write(second, {"b1": 1, "b2": 20, "b4": 4})
    return flow


def test_list_shows_the_role_and_the_topics_of_each_generation(rebuilt: RebuiltFlow) -> None:
    listed = rebuilt.headrace.run("generation", "list", rebuilt.app, "--json").json
    assert [(row["generation"], row["role"], row["writes"], row["behind"]) for row in listed] == [
        (1, "serving", rebuilt.topic, 0),
        (2, "building", f"{rebuilt.topic}.g2", 0),
    ]


def test_compare_counts_and_shows_the_keys_that_differ(rebuilt: RebuiltFlow) -> None:
    result = rebuilt.headrace.run("generation", "compare", rebuilt.app, rebuilt.flow.name, "2")
    assert "3 and 3 keys; 1 gone, 1 changed, 1 new" in result.err
    assert [line.split()[:2] for line in result.lines[1:]] == [
        ["gone", "b3"],
        ["changed", "b2"],
        ["new", "b4"],
    ]


def test_switch_publishes_the_difference_and_drop_ends_the_way_back(rebuilt: RebuiltFlow) -> None:
    command, name = rebuilt.headrace, rebuilt.flow.name
    refused = command.run("generation", "drop", rebuilt.app, name, "1", "--yes")
    assert refused.code == 1
    assert "serves, so it cannot be dropped" in refused.err
    assert command.run("generation", "switch", rebuilt.app, name, "2", "--yes").code == 0
    assert rebuilt.rows() == {"b1": 1, "b2": 20, "b4": 4}
    assert rebuilt.roles() == {1: "kept", 2: "serving"}
    assert command.run("generation", "drop", rebuilt.app, name, "1", "--yes").code == 0
    assert rebuilt.roles() == {2: "serving"}
    unknown = command.run("generation", "switch", rebuilt.app, name, "1", "--yes")
    assert unknown.code == 1
    assert f"flow {name} has no generation 1" in unknown.err


def test_view_switch_back_lets_the_previous_generation_serve_again(rebuilt: RebuiltFlow) -> None:
    command, view = rebuilt.headrace, rebuilt.flow.writes.name.replace("-bikes", "_bikes")
    nothing = command.run("view", "switch", rebuilt.app, view, "--back")
    assert "there is no way back" in nothing.err
    assert command.run("generation", "switch", rebuilt.app, rebuilt.flow.name, "2", "--yes").code == 0
    back = command.run("view", "switch", rebuilt.app, view, "--back", "--json")
    assert back.json == [{"flow": rebuilt.flow.name, "before": 2, "now": 1, "published_keys": 3}], back.err
    assert rebuilt.rows() == {"b1": 1, "b2": 2, "b3": 3}
    assert rebuilt.roles() == {1: "serving", 2: "kept"}


def test_the_last_proof_of_a_replaced_generation_is_outdated(rebuilt: RebuiltFlow) -> None:
    command, flow = rebuilt.headrace, rebuilt.flow
    proof = Report(app=rebuilt.name, what="flow", name=flow.name, topic=rebuilt.topic, generation=1)
    save_report(rebuilt.cluster, proof)
    last = command.run("verify", rebuilt.app, "--last")
    assert (last.code, last.lines) == (0, [proof.line()])
    assert command.run("generation", "switch", rebuilt.app, flow.name, "2", "--yes").code == 0
    last = command.run("verify", rebuilt.app, "--last")
    assert (last.code, last.lines) == (7, [])
    assert "HR-VERIFY-OUTDATED" in last.err
    assert f"flow {flow.name}: outdated: proven for generation 1, but generation 2 serves now" in last.err
    assert f"headrace verify {rebuilt.app}" in last.err


def test_a_generation_that_does_not_exist_is_refused_with_those_that_do(rebuilt: RebuiltFlow) -> None:
    result = rebuilt.headrace.run("generation", "compare", rebuilt.app, rebuilt.flow.name, "7")
    assert result.code == 1
    assert "has no generation 7" in result.err
    assert "its generations are: 1, 2" in result.err
