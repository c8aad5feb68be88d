"""``headrace verify`` as scripts see it: what it prints, and how it leaves."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.runner import Headrace, Result
from tests.support.flows import FlowWorld
from tests.verify import little
from tests.views.seeing import following

APP = "tests.verify.little:app"
VIEW = "little-orders"


class Little:
    def __init__(self, world: FlowWorld, home: Path) -> None:
        self.home = home
        self.headrace = Headrace(world.cluster.bootstrap)

    def verify(self, *words: str) -> Result:
        return self.headrace.run("verify", APP, *words, "--data", str(self.home))

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
def shop(flow_world: FlowWorld, followed: Path, tmp_path: Path) -> Iterator[Little]:
    made = Little(flow_world, tmp_path)
    with (
        closing(sqlite3.connect(followed / "little.db")) as one,
        closing(sqlite3.connect(tmp_path / "little.db")) as two,
    ):
        one.backup(two)
    return made


def test_what_is_right_leaves_with_0_and_one_line(shop: Little) -> None:
    done = shop.verify()
    assert (done.code, done.err) == (0, "")
    assert len(done.lines) == 1
    assert done.lines[0].startswith(f"view {VIEW}: proven, 2 rows, sha256 ")
    (told,) = shop.verify(VIEW, "--json").json
    assert (told["verdict"], told["found_rows"], told["offsets"]) == ("proven", 2, {"0": 2})


def test_what_is_wrong_leaves_with_1_and_both_values_and_is_shown_again_by_last(shop: Little) -> None:
    shop.store(f'UPDATE "{VIEW}" SET amount = 7 WHERE "order" = \'b\'')
    done = shop.verify()
    assert done.code == 1
    assert "NOT AS DERIVED: 1 different" in done.lines[0]
    assert "  different  order=b" in done.lines
    assert "             amount: 2 expected, 7 found" in done.lines
    last = shop.verify("--last")
    assert (last.code, last.lines) == (1, done.lines)
    shop.store(f'UPDATE "{VIEW}" SET amount = 2 WHERE "order" = \'b\'')
    assert shop.verify().code == 0
    assert shop.verify("--last", VIEW).code == 0
    few = shop.verify("--sample-differences", "0", "--json").json[0]
    assert few["differences"] == []


def test_what_cannot_be_verified_leaves_with_7_and_says_why(shop: Little) -> None:
    (shop.home / "little.db").unlink()
    done = shop.verify()
    assert done.code == 7
    assert "HR-VERIFY-NOT-SERVED" in done.err
    assert done.out == ""
    told = json.loads(shop.verify("--json").err)
    assert told["error"]["code"] == "HR-VERIFY-NOT-SERVED"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--all", VIEW), 2, "--all is everything"),
        (("--last", "--every", "5"), 2, "--last shows what was"),
        (("nothing",), 1, "HR-CLI-VIEW-UNKNOWN"),
        (("--flow", "nothing"), 1, "HR-CLI-FLOW-UNKNOWN"),
    ],
)
def test_what_makes_no_sense_is_refused(shop: Little, words: tuple[str, ...], code: int, says: str) -> None:
    done = shop.verify(*words)
    assert done.code == code
    assert says in done.err


def test_on_a_schedule_it_proves_again_and_again_until_it_is_interrupted(shop: Little) -> None:
    command = [sys.executable, "-m", "headrace.cli", "verify", APP, "--every", "1", "--json"]
    process = subprocess.Popen(
        [*command, "--data", str(shop.home)],
        stdout=subprocess.PIPE,
        env=shop.headrace.environment(),
        text=True,
    )
    try:
        assert process.stdout is not None
        told = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()
    assert [one["verdict"] for one in told] == ["proven"] * 3
    assert told[0]["began_ms"] < told[1]["began_ms"] < told[2]["began_ms"]
