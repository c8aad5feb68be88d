"""Servers that tests of several folders share: one Apache Kafka and one Java driver per process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.clients.java_driver import JavaDriver
from faults.servers.apache_kafka import start_kafka
from faults.servers.server import Server

__all__ = ["driver", "kafka_server"]


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_kafka(tmp_path_factory.mktemp("kafka"))
    yield server
    # Its data is removed too, so it need not stop cleanly.
    server.kill()


@pytest.fixture(scope="session")
def driver() -> Iterator[JavaDriver]:
    driver = JavaDriver()
    yield driver
    driver.close()
