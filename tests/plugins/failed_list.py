"""``--failed-list FILE``: the tests that failed, and those that did not run since a process was lost, to be run again.

There is no file where nothing failed, and where the run was ended in the middle or could not read a test file: what did
not run must not pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.plugins.lost_workers import LOST


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-list", metavar="FILE", help="write the failed tests of a run to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--failed-list")
    if path and not hasattr(config, "workerinput"):
        Path(path).unlink(missing_ok=True)
        config.pluginmanager.register(FailedList(Path(path), config.stash))


class FailedList:
    def __init__(self, path: Path, stash: pytest.Stash) -> None:
        self._path, self._stash = path, stash
        self._failed: dict[str, None] = {}
        self._left: dict[str, None] = {}
        self._is_whole = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        # Every process says the same, before the first test begins.
        self._left = self._left or dict.fromkeys(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None
        if report.when == "teardown":
            self._left.pop(report.nodeid, None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._is_whole = self._is_whole and not report.failed

    def pytest_keyboard_interrupt(self) -> None:
        """Also for ``pytest.exit``."""
        self._is_whole = self._is_whole and self._stash.get(LOST, False)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        left = [*self._left] if self._stash.get(LOST, False) else []
        if self._is_whole and (self._failed or left) and exitstatus == pytest.ExitCode.TESTS_FAILED:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"failed": [*self._failed], "left": left}))
