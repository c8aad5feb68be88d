"""Which process of a run gets which file, when servers stop, and which tests only ``make soak`` runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from faults.seeds import TEST_SEED, VARIABLE, drawn_seeds
from tests.plugins.capabilities import Capability, read_table, unproven
from tests.plugins.schedule import LANES, TABLE, Entry, Lanes, Schedule
from tests.plugins.soak import RESULTS, SoakResults, SoakRow

from .tracked import ROOT

pytest_plugins = ["pytester"]

PLUGINS = ("-p", "tests.plugins.soak", "-p", "tests.plugins.schedule", "-p", "no:cacheprovider")
NEWEST = datetime(2026, 3, 31, tzinfo=UTC)
SCHEDULE = Schedule(
    {
        "tests/a/test_stream.py": Entry(300, "spark"),
        "tests/a/test_batch.py": Entry(20, "spark"),
        "tests/b/test_produce.py": Entry(50, "kafka"),
        "tests/c/test_short.py": Entry(1, ""),
        "tests/c/test_long.py": Entry(90, ""),
        "tests/c/test_rows.py": Entry(9, "log/c"),
    }
)
FILES = list(SCHEDULE._entries)


@pytest.fixture(autouse=True)
def only_our_plugins(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))


def test_one_process_runs_a_lane_and_the_others_run_the_longest_files_first() -> None:
    lanes, waiting = Lanes(SCHEDULE), set(FILES)
    assigned: dict[str, list[str]] = {"one": [], "two": [], "three": []}
    while waiting:
        for process, files in assigned.items():
            file = lanes.choose(process, waiting)
            if file is not None:
                files.append(Path(file).stem)
                waiting.remove(file)
    assert assigned == {
        "one": ["test_stream", "test_batch"],
        "two": ["test_produce", "test_long"],
        "three": ["test_rows", "test_short"],
    }


def test_a_free_process_takes_files_of_a_lane_that_has_much_work_left() -> None:
    lanes = Lanes(SCHEDULE)
    assert lanes.choose("one", FILES) == "tests/a/test_stream.py"
    assert lanes.choose("two", ["tests/a/test_stream.py"]) == "tests/a/test_stream.py"
    assert lanes.choose("two", ["tests/a/test_batch.py"]) is None


def test_a_process_stays_in_its_lane_and_another_process_takes_the_next_lane() -> None:
    seconds = {"tests/d/test_a.py": 9, "tests/d/test_b.py": 1, "tests/e/test_a.py": 5, "tests/e/test_b.py": 2}
    lanes = Lanes(
        Schedule(
            {file: Entry(recorded, f"log/{Path(file).parent.name}") for file, recorded in seconds.items()}
        )
    )
    waiting, order = {*seconds}, []
    for process in ("one", "two", "two", "one"):
        file = lanes.choose(process, waiting)
        assert file is not None
        waiting.remove(file)
        order.append(file)
    assert order == ["tests/d/test_a.py", "tests/e/test_a.py", "tests/e/test_b.py", "tests/d/test_b.py"]


def test_a_file_without_an_entry_has_the_lane_of_its_folder() -> None:
    assert SCHEDULE.entry("tests/a/test_new.py").lane == "spark"
    assert SCHEDULE.entry("tests/d/test_new.py").lane == ""


def test_every_entry_of_the_recorded_schedule_has_a_lane_of_the_plugin() -> None:
    recorded = Schedule.read(ROOT / TABLE)
    assert len(recorded._entries) > 100
    assert {entry.lane.partition("/")[0] for entry in recorded._entries.values()} <= set(LANES)


def test_a_server_is_closed_before_the_first_test_of_the_next_lane(pytester: pytest.Pytester) -> None:
    pytester.mkdir("tests")
    folder = pytester.mkpydir("suite")
    (folder / "conftest.py").write_text(
        "import pytest\n"
        "events = []\n"
        "@pytest.fixture(scope='session')\n"
        "def log():\n"
        "    events.append('start')\n"
        "    yield events\n"
        "    events.append('stop')\n"
    )
    (folder / "test_a.py").write_text(
        "def test_a(): from suite.conftest import events; assert events[-1] == 'stop'"
    )
    (folder / "test_b.py").write_text("def test_b(log): pass\ndef test_plain(): pass\ndef test_c(log): pass")
    (folder / "test_c.py").write_text("def test_d(log): assert log == ['start']")
    result = pytester.runpytest_subprocess(*PLUGINS, "--record-schedule", "-q")
    result.assert_outcomes(passed=5)
    lines = (pytester.path / TABLE).read_text().splitlines()
    assert [line.split("\t")[::2] for line in lines] == [
        ["suite/test_a.py", ""],
        ["suite/test_b.py", "log/suite"],
        ["suite/test_c.py", "log/suite"],
    ]


def test_a_fixture_that_returns_a_closed_server_is_set_up_again(pytester: pytest.Pytester) -> None:
    pytester.mkdir("tests")
    folder = pytester.mkpydir("suite")
    (folder / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def kafka_server():\n"
        "    server = ['runs']\n"
        "    yield server\n"
        "    server.clear()\n"
        "@pytest.fixture(scope='session', params=['kafka'])\n"
        "def cluster(request):\n"
        "    return request.getfixturevalue(f'{request.param}_server')\n"
        "@pytest.fixture(scope='session')\n"
        "def spark(): return None\n"
    )
    (folder / "test_a.py").write_text("def test_a(spark, cluster): assert cluster == ['runs']")
    (folder / "test_b.py").write_text("def test_b(cluster): assert cluster == ['runs']")
    pytester.runpytest_subprocess(*PLUGINS, "-q").assert_outcomes(passed=2)


def test_several_processes_run_every_test_once_and_each_lane_in_one_process(
    pytester: pytest.Pytester,
) -> None:
    table = pytester.mkdir("tests") / TABLE.name
    lanes = {"test_a": "spark", "test_b": "spark", "test_c": "", "test_d": "", "test_e": "spark"}
    table.write_text("".join(f"{name}.py\t1.0\t{lane}\n" for name, lane in lanes.items()))
    pytester.makepyfile(
        **{
            name: f"import os\ndef test_it(): open('{name}.' + os.environ['PYTEST_XDIST_WORKER'], 'x').close()"
            for name in lanes
        }
    )
    result = pytester.runpytest_subprocess(
        *PLUGINS, "-p", "xdist", "-n", "2", "--dist", "loadfile", timeout=240
    )
    result.assert_outcomes(passed=5)
    (worker,) = {
        path.suffix for name in ("test_a", "test_b", "test_e") for path in pytester.path.glob(f"{name}.gw*")
    }
    assert worker


def test_soak_tests_are_excluded_or_run_alone_and_their_results_are_stored(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="import pytest\n@pytest.mark.soak\n@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_long(n): assert n == 1\n@pytest.mark.soak\ndef test_longer(): pass\ndef test_short(): pass"
    )
    pytester.runpytest_subprocess(*PLUGINS, "--soak", "without").assert_outcomes(passed=1, deselected=3)
    assert not (pytester.path / RESULTS).exists()
    pytester.runpytest_subprocess(*PLUGINS, "--soak", "only").assert_outcomes(
        passed=2, failed=1, deselected=1
    )
    rows = json.loads((pytester.path / RESULTS).read_text())
    assert [(row["test"], row["passed"]) for row in rows] == [
        ("test_it.py::test_long", False),
        ("test_it.py::test_longer", True),
    ]
    pytester.runpytest_subprocess(*PLUGINS).assert_outcomes(passed=3, failed=1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "did not run, and make soak has no result of it"),
        (
            [SoakRow("a.py::test_b", False, "c0ffee", "2026-03-30T00:00:00+00:00")],
            "did not pass in make soak",
        ),
        ([SoakRow("a.py::test_b", True, "unknown", "2026-03-30T00:00:00+00:00")], "on changed files"),
        ([SoakRow("a.py::test_b", True, "c0ffee", "2026-03-16T00:00:00+00:00")], "last ran in make soak on"),
        ([SoakRow("a.py::test_b", True, "c0ffee", "2026-03-17T00:00:00+00:00")], None),
    ],
)
def test_a_capability_with_soak_tests_needs_a_recent_passing_result(
    rows: list[SoakRow], message: str | None
) -> None:
    claim = Capability("L1", "Topics", "x", ("a.py::test_a",), ("a.py::test_b",))
    lines = unproven([claim], {"a.py::test_a": True}, SoakResults(rows, NEWEST))
    assert lines == [] if message is None else message in lines[0]


def test_the_table_distinguishes_tests_of_make_soak() -> None:
    head = "| No. | Capability | How a user does it | Shown by |\n|---|---|---|---|\n"
    (row,) = read_table(head + "| L1 | Topics | `x` | `a.py::test_a`, `a.py::test_b` (make soak) |")
    assert (row.tests, row.soak_tests) == (("a.py::test_a",), ("a.py::test_b",))


def test_drawn_seeds_are_determined_by_the_seed_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(TEST_SEED, "1")
    first = drawn_seeds(3)
    assert first == drawn_seeds(3)
    monkeypatch.setenv(TEST_SEED, "2")
    assert first != drawn_seeds(3)
    monkeypatch.setenv(VARIABLE, "17")
    assert drawn_seeds(3) == [17]
