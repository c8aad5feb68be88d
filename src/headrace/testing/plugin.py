"""Pytest fixtures for tests of an app: derive, running, clock, broker and spark.

Enable them in ``conftest.py`` beside the tests:

    pytest_plugins = ["headrace.testing.plugin"]

Not an entry point of pytest: pytest would then load it for every project of an environment in which Headrace is
installed, with fixtures such as ``spark`` that those projects may have themselves.

Any fixture can be overridden in ``conftest.py``: if it defines another ``spark``, ``derive`` and ``running`` use that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.app import App
from headrace.testing.broker import BrokerThread
from headrace.testing.clock import DrivenClock
from headrace.testing.flow_tester import FlowTester
from headrace.testing.local import local_spark
from headrace.testing.running_app import RunningApp
from headrace.testing.running_app import running as run_app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker", "clock", "derive", "running", "spark"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small Spark session for all tests. It starts when the first test needs it, which takes a few seconds."""
    with local_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def derive(spark: SparkSession) -> FlowTester:
    """Derives the rows of one flow in batch: ``derive(flow, rows)``. It compiles each flow once."""
    return FlowTester(spark)


@pytest.fixture
def clock() -> DrivenClock:
    """The clock of the broker, and the time of the records that ``write`` writes. It is the machine's time until the
    test advances it.
    """
    return DrivenClock(time.time_ns() // 1_000_000, ticking=time.monotonic)


@pytest.fixture
def broker(tmp_path: Path, clock: DrivenClock) -> Iterator[BrokerThread]:
    """The embedded broker alone, in a thread. ``broker.bootstrap`` is its address."""
    with BrokerThread(tmp_path / "broker", clock) as thread:
        yield thread


@pytest.fixture
def running(
    request: pytest.FixtureRequest, tmp_path: Path, clock: DrivenClock
) -> Callable[..., AbstractContextManager[RunningApp]]:
    """Runs an app: ``with running(app) as shop``. All runs of a test have the same data directory, so a second run
    continues. Options are those of ``headrace.testing.running``.
    """

    def start(app: App, **options: Any) -> AbstractContextManager[RunningApp]:
        if app.flows:
            options.setdefault("spark", request.getfixturevalue("spark"))
        options.setdefault("data", tmp_path / "headrace-data")
        options.setdefault("clock", clock)
        return run_app(app, **options)

    return start
