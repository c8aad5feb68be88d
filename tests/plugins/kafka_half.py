"""Apache Kafka's half of a comparison: recorded in ``make test``; live, with retries, in ``make soak``.

A comparison runs the same scenario against both servers, with stock clients. Our half runs in every test run.

- ``@pytest.mark.kafka_half`` marks a case that runs against Apache Kafka alone and asserts its responses.
- The fixture ``kafka_half`` is for a test that compares our responses with Kafka's.

    --kafka recorded    the default: compare with the recordings (``kafka_recordings``) and do not run the marked
                        cases; a marked case without a recording of its present code fails. Without any recordings
                        for this version of Kafka, run all cases live.
    --kafka live        run only the comparisons, against a running Apache Kafka (``make soak``)
    --kafka record      the same, and write the recordings (``make record-kafka``)

Apache Kafka responds to some requests before it has executed them, and on a busy machine its own pauses make group
members time out. Such a failure is not a fault of our broker, so a live half is tried up to three times. The run prints
each retry and their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from faults.servers.server import Server
from tests.plugins.kafka_recordings import (
    NoRecording,
    Recording,
    Recordings,
    as_json,
    code_digest,
    kafka_version,
)

__all__ = ["RETRIED", "KafkaHalf"]

RETRIED = "retried on Apache Kafka"
_TRIES = 3
_recordings = pytest.StashKey[Recordings]()
_marked = pytest.StashKey[int]()
_replays = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        choices=("recorded", "live", "record"),
        default="recorded",
        help="compare with recorded answers of Apache Kafka (default), or run only the comparisons with a live one, or "
        "record its answers",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kafka_half: the case runs against Apache Kafka alone, in make soak and make record-kafka"
    )
    is_one_of_several = hasattr(config, "workerinput")
    if config.getoption("--kafka") == "record" and (
        is_one_of_several or getattr(config.option, "numprocesses", None)
    ):
        raise pytest.UsageError("--kafka record runs in one process: leave -n out")
    recordings = config.stash[_recordings] = Recordings(config.rootpath, kafka_version())
    config.stash[_replays] = config.getoption("--kafka") == "recorded" and recordings.exist()
    # With several processes only the first one receives the reports of all tests.
    if not is_one_of_several:
        config.pluginmanager.register(Retries())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: list[pytest.Item] = []
    if config.stash[_replays]:
        left_out = [item for item in items if _is_marked(item) and _missing(item) is None]
        config.stash[_marked] = len(left_out)
    elif config.getoption("--kafka") != "recorded":
        left_out = [item for item in items if not _is_marked(item) and "kafka_half" not in _fixtures(item)]
    if left_out:
        chosen = {*left_out}
        items[:] = [item for item in items if item not in chosen]
        config.hook.pytest_deselected(items=left_out)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    count = config.stash.get(_marked, 0)
    return f"Apache Kafka {kafka_version()}: {count} cases recorded, not run" if count else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _is_marked(item) and item.config.stash[_replays]:
        error = _missing(item)
        assert error is not None
        raise error


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not _is_marked(item) or item.config.stash[_replays]:
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
    if item.config.getoption("--kafka") == "record":
        recordings = item.config.stash[_recordings]
        if any(report.failed for report in reports):
            recordings.drop(item.nodeid)
        else:
            recordings.put(item.nodeid, Recording(_digest(item)))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if config.getoption("--kafka") != "record":
        return
    recordings = config.stash[_recordings]
    if not config.getoption("keyword") and not any("::" in argument for argument in config.args):
        cases: dict[str, set[str]] = {}
        for item in session.items:
            file, _, case = item.nodeid.partition("::")
            cases.setdefault(file, set()).add(case)
        for file, names in cases.items():
            recordings.keep_only(file, names)
    recordings.write()


def _is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("kafka_half") is not None


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


def _missing(item: pytest.Item) -> NoRecording | None:
    try:
        item.config.stash[_recordings].require(item.nodeid, _digest(item))
    except NoRecording as error:
        return error
    return None


def _digest(item: Any) -> str:
    return code_digest(item.config.rootpath, item.nodeid.partition("::")[0], item.originalname)


class KafkaHalf:
    """``start`` returns a running Apache Kafka; it is not called if a recording is used."""

    def __init__(
        self, item: pytest.Item, start: Callable[[], Server], note: Callable[[str, object], None]
    ) -> None:
        self._item = item
        self._start = start
        self._note = note
        self._replays = item.config.stash[_replays]

    def compare(self, observe: Callable[[Server], object], check: Callable[[Any], None]) -> None:
        """Check the recorded observation, or observe Apache Kafka until ``check`` accepts it, at most three times.

        ``check`` gets the observation in the form of JSON; convert our own by ``as_json`` before comparing.
        """
        if self._replays:
            recording = self._item.config.stash[_recordings].require(self._item.nodeid, _digest(self._item))
            assert recording.has_answers, f"the recording of {self._item.nodeid} has no answers"
            check(recording.answers)
            return
        server = self._start()
        if self._item.config.getoption("--kafka") == "record":
            self._item.config.stash[_recordings].drop(self._item.nodeid)
        for _ in range(_TRIES - 1):
            try:
                self._try(server, observe, check)
            except Exception as error:
                self._note(RETRIED, str(error))
            else:
                return
        self._try(server, observe, check)

    def _try(self, server: Server, observe: Callable[[Server], object], check: Callable[[Any], None]) -> None:
        answers = as_json(observe(server))
        check(answers)
        if self._item.config.getoption("--kafka") == "record":
            recording = Recording(_digest(self._item), answers)
            self._item.config.stash[_recordings].put(self._item.nodeid, recording)


@pytest.fixture
def kafka_half(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> KafkaHalf:
    return KafkaHalf(request.node, lambda: request.getfixturevalue("kafka_server"), record_property)


@dataclass
class Retry:
    """This is not a tuple, because other plugins read attributes of everything that pytest counts."""

    nodeid: str
    reason: object


class Retries:
    """Collects the retries of all processes, as a statistic of the run like passed and failed."""

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
