"""``--capabilities``: every test that docs/capabilities.md names must have run and passed, or the run fails.

The table says what the product can do and which tests show it. With the flag, which ``make test`` gives, a claim whose
test was renamed, left out or broken fails the run; without it, a part of the suite may run alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

TABLE = Path("docs") / "capabilities.md"
COLUMNS = ("No.", "Capability", "How a user does it", "Shown by")
_TEST = re.compile(r"`([^`\s]+\.py::[^`\s]+)`")


@dataclass(frozen=True)
class Capability:
    number: str
    name: str
    how: str
    tests: tuple[str, ...]


def read_table(text: str) -> list[Capability]:
    """The rows of the one table in the page; the cell of tests holds ``path::name`` in backquotes."""
    rows = [_cells(line) for line in text.splitlines() if line.startswith("|")]
    if len(rows) < 2 or tuple(rows[0]) != COLUMNS:
        raise ValueError(f"the table must begin with the columns {' | '.join(COLUMNS)}")
    for row in rows[2:]:
        if len(row) != len(COLUMNS) or not all(row):
            raise ValueError(f"a row needs {len(COLUMNS)} filled cells, found {row}")
    return [Capability(row[0], row[1], row[2], tuple(_TEST.findall(row[3]))) for row in rows[2:]]


def _cells(line: str) -> list[str]:
    parts = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [part.strip().replace(r"\|", "|") for part in parts]


def unproven(capabilities: list[Capability], outcomes: dict[str, bool]) -> list[str]:
    """One line for each claim that this run does not support."""
    lines = []
    for capability in capabilities:
        if not capability.tests:
            lines.append(f"{capability.number}: names no test")
        for name in capability.tests:
            found = [
                passed
                for node, passed in outcomes.items()
                if f"{node}[".startswith((f"{name}[", f"{name}::"))
            ]
            if not found:
                lines.append(f"{capability.number}: {name} did not run")
            elif not all(found):
                lines.append(f"{capability.number}: {name} did not pass")
    return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--capabilities", action="store_true", help=f"fail unless every test named in {TABLE} passed"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Where the suite is spread over several processes, only the first one hears of every test.
    if config.getoption("--capabilities") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Claims(config.rootpath / TABLE), "claims")


class Claims:
    """Notes how each test ended, and holds the table against it at the end."""

    def __init__(self, table: Path) -> None:
        self.capabilities = read_table(table.read_text(encoding="utf-8"))
        self.outcomes: dict[str, bool] = {}
        self.unproven: list[str] = []
        self.whole = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.outcomes[report.nodeid] = report.passed and self.outcomes.get(report.nodeid, True)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # A run that was broken off fails anyway, and every claim would be listed.
        self.whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        self.unproven = unproven(self.capabilities, self.outcomes) if self.whole else []
        if self.unproven:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unproven:
            terminalreporter.section(f"claims of {TABLE} that this run does not support", red=True)
            for line in self.unproven:
                terminalreporter.line(line)
        elif self.whole:
            terminalreporter.line(f"{len(self.capabilities)} capabilities of {TABLE} shown")
