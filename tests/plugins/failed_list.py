"""``--failed-list FILE``: the tests that failed, to be run again alone; no file where the run was not whole.

A run that was ended in the middle, lost a process or could not read a test file has no such list: what did not run
must not pass.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-list", metavar="FILE", help="write the failed tests of a whole run to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--failed-list")
    if path and not hasattr(config, "workerinput"):
        Path(path).unlink(missing_ok=True)
        config.pluginmanager.register(FailedList(Path(path)))


class FailedList:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, None] = {}
        self._is_whole = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._is_whole = self._is_whole and not report.failed

    def pytest_keyboard_interrupt(self) -> None:
        """Also for ``pytest.exit``."""
        self._is_whole = False

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self._is_whole and self._failed and exitstatus == pytest.ExitCode.TESTS_FAILED:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps([*self._failed]))
