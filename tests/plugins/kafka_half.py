"""Apache Kafka's half of a comparison may be retried. Each retry is printed, and the closing line counts them.

A comparison runs the same scenario against both servers. Apache Kafka answers some requests before it has done what
they say, and on a busy machine it loses members to pauses of its own: a failure there says nothing about our broker.
Our half runs once, with every client.

- ``@pytest.mark.kafka_half`` marks a case that runs against Apache Kafka alone. The whole case is retried.
- The fixture ``kafka_half`` is for a test that compares both servers: only the observation of Kafka is retried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest
from _pytest.runner import runtestprotocol

__all__ = ["RETRIED", "KafkaHalf"]

RETRIED = "retried on Apache Kafka"
_TRIES = 3
T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kafka_half: the case runs against Apache Kafka alone, and may be retried"
    )
    # Where the suite is spread over several processes, only the first one hears of every test.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Retries())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker("kafka_half") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for _ in range(_TRIES - 1):
        failures = [report.longreprtext for report in reports if report.failed]
        if not failures:
            break
        item.user_properties.append((RETRIED, "\n".join(failures)))
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class KafkaHalf:
    def __init__(self, note: Callable[[str, object], None]) -> None:
        self._note = note

    def compare(self, observe: Callable[[], T], check: Callable[[T], None]) -> None:
        """Observe Apache Kafka until ``check`` accepts the observation, three times at most."""
        for _ in range(_TRIES - 1):
            try:
                check(observe())
            except Exception as error:
                self._note(RETRIED, str(error))
            else:
                return
        check(observe())


@pytest.fixture
def kafka_half(record_property: Callable[[str, object], None]) -> KafkaHalf:
    return KafkaHalf(record_property)


@dataclass
class Retry:
    """Other plugins look at the attributes of everything that pytest counts, so it is no tuple."""

    nodeid: str
    reason: object


class Retries:
    """Collects the retries of all processes. They are a statistic of the run like passed and failed."""

    def __init__(self) -> None:
        self._retries: list[Retry] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._retries += [
                Retry(report.nodeid, reason) for name, reason in report.user_properties if name == RETRIED
            ]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._retries:
            terminalreporter.section(RETRIED, yellow=True)
            for retry in self._retries:
                terminalreporter.line(f"{retry.nodeid}\n{retry.reason}")
            terminalreporter._add_stats(RETRIED, self._retries)
