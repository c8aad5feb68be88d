"""A skipped test counts as failed, because the project installs everything that a test needs.

An expected failure (xfail) counts as a skip, whether it fails or passes: fix a known fault, or remove its test.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected = getattr(report, "wasxfail", None)
    if expected is not None:
        del report.wasxfail
        _fail(report, f"expected failure: {expected}")
    elif report.skipped:
        _fail(report, _reason(report))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _fail(report, _reason(report))
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport, reason: str) -> None:
    report.outcome = "failed"
    report.longrepr = (
        f"{reason}\nA skipped test counts as failed: the project installs everything that a test needs."
    )


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    return str(where[2]) if isinstance(where, tuple) else str(where)
