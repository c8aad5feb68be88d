"""One Spark session for all tests of flows, and the fixtures of ``headrace.testing``, which use that session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from faults.servers.spark import start_spark, stop_spark
from headrace.testing.plugin import broker, clock, derive, running

__all__ = ["broker", "clock", "derive", "running", "spark"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    running = start_spark(tmp_path_factory.mktemp("spark"))
    yield running
    stop_spark(running)
