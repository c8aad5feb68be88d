"""``headrace verify`` for scripts: its output and its exit codes."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from faults.flows.world import FlowWorld
from faults.views.follower_thread import following
from tests.cli.runner import Headrace, Result
from tests.verify import little

APP = "tests.verify.little:app"
VIEW = "little-orders"


class LittleApp:
    def __init__(self, world: FlowWorld, home: Path) -> None:
        self.home = home
        self.headrace = Headrace(world.cluster.bootstrap)
        # Other test modules write to the same topic, so the end offsets are read here.
        self.ends = {str(partition): end for partition, end in world.cluster.ends(little.orders.name).items()}

    def verify(self, *arguments: str) -> Result:
        return self.headrace.run("verify", APP, *arguments, "--data", str(self.home))

    def store(self, statement: str) -> None:
        with closing(sqlite3.connect(self.home / "little.db")) as connection, connection:
            connection.execute(statement)


@pytest.fixture(scope="module")
def followed(flow_world: FlowWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("little")
    flow_world.declare(little.app)
    flow_world.write(little.orders, [little.Order("a", 1), little.Order("b", 2)])
    with following(flow_world.cluster, little.app.views[0], [], home) as view:
        view.expect({"a": ("a", 1), "b": ("b", 2)})
    (home / "shop.db").rename(home / "little.db")
    return home


@pytest.fixture
def little_app(flow_world: FlowWorld, followed: Path, tmp_path: Path) -> LittleApp:
    created = LittleApp(flow_world, tmp_path)
    with (
        closing(sqlite3.connect(followed / "little.db")) as store,
        closing(sqlite3.connect(tmp_path / "little.db")) as copy,
    ):
        store.backup(copy)
    return created


def test_a_correct_view_exits_with_0_and_one_line(little_app: LittleApp) -> None:
    done = little_app.verify()
    assert (done.code, done.err) == (0, "")
    assert len(done.lines) == 1
    assert done.lines[0].startswith(f"view {VIEW}: proven, 2 rows, sha256 ")
    (result,) = little_app.verify(VIEW, "--json").json
    assert (result["verdict"], result["found_rows"], result["offsets"]) == ("proven", 2, little_app.ends)


def test_a_wrong_row_exits_with_1_and_shows_both_values_and_the_last_option_repeats_the_result(
    little_app: LittleApp,
) -> None:
    little_app.store(f'UPDATE "{VIEW}" SET amount = 7 WHERE "order" = \'b\'')
    done = little_app.verify()
    assert done.code == 1
    assert "NOT AS DERIVED: 1 different" in done.lines[0]
    assert "  different  order=b" in done.lines
    assert "             amount: 2 expected, 7 found" in done.lines
    rebuild = f"headrace view rebuild {APP} {VIEW}"
    assert f"  next step: fill the view again from its topic: {rebuild}" in done.lines
    last = little_app.verify("--last")
    assert (last.code, last.lines) == (1, done.lines)
    little_app.store(f'UPDATE "{VIEW}" SET amount = 2 WHERE "order" = \'b\'')
    assert little_app.verify().code == 0
    assert little_app.verify("--last", VIEW).code == 0
    without_differences = little_app.verify("--sample-differences", "0", "--json").json[0]
    assert without_differences["differences"] == []


def test_an_unverifiable_view_exits_with_7_and_the_reason(little_app: LittleApp) -> None:
    (little_app.home / "little.db").unlink()
    done = little_app.verify()
    assert done.code == 7
    assert "HR-VERIFY-NOT-SERVED" in done.err
    assert done.out == ""
    result = json.loads(little_app.verify("--json").err)
    assert result["error"]["code"] == "HR-VERIFY-NOT-SERVED"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--all", VIEW), 2, "--all cannot be combined"),
        (("--last", "--every", "5"), 2, "--last and --every cannot be combined"),
        (("nothing",), 1, "HR-CLI-VIEW-UNKNOWN"),
        (("--flow", "nothing"), 1, "HR-CLI-FLOW-UNKNOWN"),
    ],
)
def test_contradictory_options_are_refused(
    little_app: LittleApp, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = little_app.verify(*arguments)
    assert done.code == code
    assert message in done.err


def test_a_schedule_verifies_repeatedly_until_it_is_interrupted(little_app: LittleApp) -> None:
    command = [sys.executable, "-m", "headrace.cli", "verify", APP, "--every", "1", "--json"]
    process = subprocess.Popen(
        [*command, "--data", str(little_app.home)],
        stdout=subprocess.PIPE,
        env=little_app.headrace.environment(),
        text=True,
    )
    try:
        assert process.stdout is not None
        result = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()
    assert [line["verdict"] for line in result] == ["proven"] * 3
    assert result[0]["began_ms"] < result[1]["began_ms"] < result[2]["began_ms"]
