"""One Spark session and one log for all tests of flows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from faults.servers.spark import start_spark, stop_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    running = start_spark(tmp_path_factory.mktemp("spark"))
    yield running
    stop_spark(running)
