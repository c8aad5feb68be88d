"""Fixtures for flows: one broker and one Spark session for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.flows import shared_world
from faults.flows.world import FlowWorld
from faults.servers.headrace_broker import start_headrace
from faults.servers.spark import compiled, start_spark, stop_spark
from headrace.client.cluster import Cluster

__all__ = ["compiled_plans", "fault_world", "flow_world"]


@pytest.fixture(scope="module")
def compiled_plans(flow_world: FlowWorld) -> Iterator[None]:
    """Compile the plans of the module's flows."""
    with compiled(flow_world.spark):
        yield


@pytest.fixture(scope="session")
def fault_world() -> Iterator[None]:
    """Close the broker and the Spark of fault runs after the last test that uses them."""
    yield
    shared_world.close()


@pytest.fixture(scope="session")
def flow_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowWorld]:
    home = tmp_path_factory.mktemp("flows")
    options = ("--set", "log.cleaner.backoff.ms=500", "--set", "log.retention.check.interval.ms=500")
    server = start_headrace(home / "log", options)
    spark = start_spark(home)
    try:
        yield FlowWorld(server, Cluster(server.bootstrap), spark, home)
    finally:
        stop_spark(spark)
        assert server.stop() == 0, server.log.read_text()[-4000:]
