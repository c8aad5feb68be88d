"""``--capabilities``: the run fails unless every test that docs/capabilities.md names ran and passed.

The table lists what the product can do and the tests that show it. ``make test`` sets the flag: a claim whose test was
renamed, left out or broken then fails the run. A test that only ``make soak`` runs counts by its result there. Without
the flag a part of the suite can run alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.plugins.soak import SoakResults

TABLE = Path("docs") / "capabilities.md"
COLUMNS = ("No.", "Capability", "How a user does it", "Shown by")
_TEST = re.compile(r"`([^`\s]+\.py::[^`\s]+)`( \(make soak\))?")


@dataclass(frozen=True)
class Capability:
    number: str
    name: str
    how: str
    tests: tuple[str, ...]
    soak_tests: tuple[str, ...] = ()
    """Tests that only ``make soak`` runs."""


def read_table(text: str) -> list[Capability]:
    """Parse the one table of the page. The cell of tests holds ``path::name`` in backquotes; ``(make soak)`` follows a
    test that only ``make soak`` runs.
    """
    rows = [_cells(line) for line in text.splitlines() if line.startswith("|")]
    if len(rows) < 2 or tuple(rows[0]) != COLUMNS:
        raise ValueError(f"the table must begin with the columns {' | '.join(COLUMNS)}")
    for row in rows[2:]:
        if len(row) != len(COLUMNS) or not all(row):
            raise ValueError(f"a row needs {len(COLUMNS)} filled cells, found {row}")
    return [_capability(row) for row in rows[2:]]


def _capability(row: list[str]) -> Capability:
    found = _TEST.findall(row[3])
    tests = tuple(name for name, soak in found if not soak)
    return Capability(row[0], row[1], row[2], tests, tuple(name for name, soak in found if soak))


def _cells(line: str) -> list[str]:
    parts = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [part.strip().replace(r"\|", "|") for part in parts]


def unproven(
    capabilities: list[Capability], outcomes: dict[str, bool], soak: SoakResults | None = None
) -> list[str]:
    """Return one line for each claim that neither this run nor the results of ``make soak`` support."""
    soak = soak or SoakResults()
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
        for name in capability.soak_tests:
            objection = soak.objection(name)
            lines += [f"{capability.number}: {name} {objection}"] if objection else []
    return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--capabilities", action="store_true", help=f"fail unless every test named in {TABLE} passed"
    )


def pytest_configure(config: pytest.Config) -> None:
    # With several processes only the first one receives the reports of all tests.
    if config.getoption("--capabilities") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Claims(config.rootpath), "claims")


class Claims:
    """Collects the outcome of each test and compares the table with them at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.capabilities = read_table((root / TABLE).read_text(encoding="utf-8"))
        self.outcomes: dict[str, bool] = {}
        self.unproven: list[str] = []
        self.whole = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.outcomes[report.nodeid] = report.passed and self.outcomes.get(report.nodeid, True)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # An interrupted run fails anyway, and would list every claim.
        self.whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        self.unproven = (
            unproven(self.capabilities, self.outcomes, SoakResults.read(self.root)) if self.whole else []
        )
        if self.unproven:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unproven:
            terminalreporter.section(f"claims of {TABLE} that this run does not support", red=True)
            for line in self.unproven:
                terminalreporter.line(line)
        elif self.whole:
            terminalreporter.line(f"{len(self.capabilities)} capabilities of {TABLE} shown")
