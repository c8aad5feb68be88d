"""Tests that only ``make soak`` runs, and their results.

``@pytest.mark.soak`` marks a test that costs too much for every ``make test``:

    --soak without    leave these tests out (``make test``)
    --soak only       run these tests alone and write their results (``make soak``)

Without the option all tests run. ``bench/results/soak.json`` has a row per test: whether it passed, at which commit,
and when. ``docs/capabilities.md`` may name such a test. Its row must then exist, must have passed, and must not be more
than 14 days older than the newest commit.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from faults.covered_code import UNKNOWN, commit_of

__all__ = ["RESULTS", "SoakResults", "SoakRow"]

RESULTS = Path("bench") / "results" / "soak.json"
_AGE_MAX = timedelta(days=14)
_COVERS = ("bench", "faults", "src", "tests")


@dataclass(frozen=True)
class SoakRow:
    test: str
    """Path and name, without parameters."""
    passed: bool
    commit: str
    date: str
    """When the test ran, ISO 8601 with the offset."""


class SoakResults:
    """``newest`` is the time of the newest commit, or None outside of a Git repository."""

    def __init__(self, rows: Sequence[SoakRow] = (), newest: datetime | None = None) -> None:
        self._rows = {row.test: row for row in rows}
        self._newest = newest

    @classmethod
    def read(cls, root: Path) -> SoakResults:
        path = root / RESULTS
        rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        return cls([SoakRow(**row) for row in rows], _newest_commit(root))

    def objection(self, test: str) -> str | None:
        """Why the row of the test does not support a claim, or None if it does."""
        row = self._rows.get(test)
        if row is None:
            return "did not run, and make soak has no result of it"
        if not row.passed:
            return f"did not pass in make soak at {row.commit}"
        if row.commit == UNKNOWN:
            return "ran in make soak on changed files; run make soak on a commit"
        if self._newest is not None and self._newest - datetime.fromisoformat(row.date) > _AGE_MAX:
            return f"last ran in make soak on {row.date}; the newest commit is of {self._newest.isoformat()}"
        return None

    def with_outcomes(self, outcomes: Mapping[str, bool], commit: str, date: str) -> list[SoakRow]:
        """Return all rows by test, with those in ``outcomes`` (node id to passed) replaced."""
        passed: dict[str, bool] = {}
        for node, ok in outcomes.items():
            test = node.split("[", 1)[0]
            passed[test] = ok and passed.get(test, True)
        rows = {**self._rows, **{test: SoakRow(test, ok, commit, date) for test, ok in passed.items()}}
        return [rows[test] for test in sorted(rows)]


def _newest_commit(root: Path) -> datetime | None:
    try:
        done = subprocess.run(
            ["git", "log", "-1", "--format=%cI"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return datetime.fromisoformat(done.stdout.strip())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        choices=("without", "only"),
        help="leave the tests marked soak out, or run them alone and write their results; default: run all tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: the test runs in make soak, not in make test")
    # With several processes only the first one receives the reports of all tests.
    if config.getoption("--soak") == "only" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SoakRecorder(config.rootpath), "soak-recorder")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    choice = config.getoption("--soak")
    if choice is None:
        return
    marked = [item for item in items if item.get_closest_marker("soak") is not None]
    plain = [item for item in items if item.get_closest_marker("soak") is None]
    items[:], deselected = (plain, marked) if choice == "without" else (marked, plain)
    config.hook.pytest_deselected(items=deselected)


class SoakRecorder:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._outcomes: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._outcomes[report.nodeid] = report.passed and self._outcomes.get(report.nodeid, True)

    def pytest_sessionfinish(self) -> None:
        if not self._outcomes:
            return
        commit = commit_of(_COVERS, self._root)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        rows = SoakResults.read(self._root).with_outcomes(self._outcomes, commit, date)
        path = self._root / RESULTS
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
