"""``headrace generation`` and ``headrace view switch --back``, with a flow whose records are written by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.committed_records import committed
from faults.wait import until
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

totals = app.table("NAME-totals", Ride, key="bike")

@app.flow(reads=[rides, bikes], writes=totals, name="NAME-join")
def join(rides, bikes):
    return rides.join(bikes.select("bike"), "bike")

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

        self.flow, self.downstream = load_app(self.app).flows
        self.topic = self.flow.writes.name

    def write(
        self, entry: Entry, rows: Mapping[str, int], flow: Flow | None = None, reads: str | None = None
    ) -> None:
        """Write a generation and its only batch, as its driver would."""
        flow = flow or self.flow
        begin_deriving(self.cluster, self.name, flow, entry, reads or "")
        derive_batch(
            self.cluster, flow, entry, {bike: {"bike": bike, "minutes": n} for bike, n in rows.items()}
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

    def roles(self, flow: Flow | None = None) -> dict[int, str]:
        listed = self.headrace.run("generation", "list", self.app, "--json")
        name = (flow or self.flow).name
        return {row["generation"]: row["role"] for row in listed.json if row["flow"] == name}


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
    assert (
        "3 and 3 rows, 3 and 3 keys; 1 gone, 1 changed, 1 new; late 0 % and 0 %, dead 0 % and 0 %"
        in result.err
    )
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
    _expect_last_report(rebuilt)
    assert command.run("generation", "drop", rebuilt.app, name, "1", "--yes").code == 0
    assert rebuilt.roles() == {2: "serving"}
    unknown = command.run("generation", "switch", rebuilt.app, name, "1", "--yes")
    assert unknown.code == 1
    assert f"flow {name} has no generation 1" in unknown.err


def _expect_last_report(rebuilt: RebuiltFlow) -> None:
    """The report of the switch is readable afterwards."""
    last = rebuilt.headrace.run("generation", "compare", rebuilt.app, rebuilt.flow.name, "--json")
    (report,) = last.json
    assert (report["before"], report["after"], report["counts"]["gone"]) == (1, 2, 1)
    assert [(sample["kind"], sample["key"]) for sample in report["samples"]] == [
        ("gone", "b3"),
        ("changed", "b2"),
        ("new", "b4"),
    ]


def test_view_switch_back_lets_the_previous_generation_serve_again(rebuilt: RebuiltFlow) -> None:
    command, view = rebuilt.headrace, rebuilt.flow.writes.name.replace("-bikes", "_bikes")
    nothing = command.run("view", "switch", rebuilt.app, view, "--back")
    assert "no kept generation to switch back to" in nothing.err
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


@pytest.mark.parametrize("words", [("serve", "--listen", "127.0.0.1:0"), ("view", "follow")])
def test_a_process_that_serves_or_follows_reports_that_another_generation_serves(
    rebuilt: RebuiltFlow, tmp_path: Path, words: tuple[str, ...]
) -> None:
    command, log = rebuilt.headrace, tmp_path / "printed"
    arguments = (*words, rebuilt.app, "--data", str(tmp_path))
    with (
        open(log, "wb") as output,
        command.started(*arguments, stderr=output, stdout=output) as process,
    ):
        until(lambda: process.poll() is not None or b"rental" in log.read_bytes(), "the process runs")
        switched = command.run("generation", "switch", rebuilt.app, rebuilt.flow.name, "2", "--yes")
        assert switched.code == 0, switched.err
        line = f"topic {rebuilt.topic} of app {rebuilt.name}: generation 2 serves now, after generation 1"
        until(lambda: line in log.read_text() or process.poll() is not None, "the process reports it")
        assert line in log.read_text()


def test_a_generation_that_does_not_exist_is_refused_with_those_that_do(rebuilt: RebuiltFlow) -> None:
    result = rebuilt.headrace.run("generation", "compare", rebuilt.app, rebuilt.flow.name, "7")
    assert result.code == 1
    assert "has no generation 7" in result.err
    assert "its generations are: 1, 2" in result.err


@pytest.fixture
def chain(rebuilt: RebuiltFlow) -> RebuiltFlow:
    """Two flows, of which the second reads the rows of the first. Both have switched to generation 2."""
    topic, downstream = rebuilt.topic, rebuilt.downstream
    first = Entry(1, downstream.progress_topic, downstream.writes.name, "old", "first start", 1)
    rebuilt.write(first, {"b1": 1}, downstream, topic)
    _begin_downstream(rebuilt, f"{topic}.g2")
    switched = rebuilt.headrace.run("generation", "switch", rebuilt.app, rebuilt.flow.name, "2", "--yes")
    assert switched.code == 0, switched.err
    assert rebuilt.roles() == rebuilt.roles(downstream) == {1: "kept", 2: "serving"}
    return rebuilt


def _begin_downstream(rebuilt: RebuiltFlow, topic: str) -> None:
    with GenerationsWriter(rebuilt.cluster, rebuilt.downstream) as writer:
        entry = writer.begin_generation("new", "requested")
    rebuilt.write(entry, {"b1": 2}, rebuilt.downstream, topic)


def test_switch_back_is_refused_if_a_flow_downstream_would_still_read_the_other_rows(
    chain: RebuiltFlow,
) -> None:
    command, view = chain.headrace, chain.topic.replace("-bikes", "_bikes")
    refused = command.run("view", "switch", chain.app, view, "--back")
    assert refused.code == 1
    # The first generation downstream has read the stable topic, which now has the difference.
    assert f"flow {chain.downstream.name} has no generation of the rows of generation 1" in refused.err
    assert chain.roles() == chain.roles(chain.downstream) == {1: "kept", 2: "serving"}
    alone = command.run("generation", "switch", chain.app, chain.flow.name, "1", "--yes")
    assert alone.code == 0, alone.err
    assert f"headrace flow rebuild {chain.app} {chain.downstream.name}" in alone.err


def test_switch_back_lets_the_flows_downstream_switch_back_first(chain: RebuiltFlow) -> None:
    command, flow, view = chain.headrace, chain.flow, chain.topic.replace("-bikes", "_bikes")
    with GenerationsWriter(chain.cluster, flow) as writer:
        third = writer.begin_generation("newest", "requested")
    chain.write(third, {"b1": 3})
    _begin_downstream(chain, third.topic)
    assert command.run("generation", "switch", chain.app, flow.name, "3", "--yes").code == 0
    back = command.run("view", "switch", chain.app, view, "--back", "--json")
    assert [(row["flow"], row["before"], row["now"]) for row in back.json] == [
        (chain.downstream.name, 3, 2),
        (flow.name, 3, 2),
    ], back.err
    assert chain.rows() == {"b1": 1, "b2": 20, "b4": 4}
    roles = {1: "kept", 2: "serving", 3: "kept"}
    assert chain.roles() == chain.roles(chain.downstream) == roles
