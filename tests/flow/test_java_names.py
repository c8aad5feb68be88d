"""py4j requests what a Java name means once, and not on every access."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession


class Requests:
    """Counts the requests of this thread to the JVM. py4j's own threads release objects meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from py4j.clientserver import ClientServerConnection

        send, thread = ClientServerConnection.send_command, threading.current_thread()
        self.count = 0

        def counted(connection: Any, command: str) -> Any:
            self.count += threading.current_thread() is thread
            return send(connection, command)

        monkeypatch.setattr(ClientServerConnection, "send_command", counted)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


def test_a_name_is_requested_once(spark: SparkSession, requests: Requests) -> None:
    jvm: Any = spark._jvm
    first = jvm.java.util.Objects.hash
    requests.count = 0
    assert jvm.java.util.Objects.hash is first
    assert requests.count == 0


def test_a_class_that_is_missing_may_come_later(spark: SparkSession, requests: Requests) -> None:
    jvm: Any = spark._jvm
    for _ in range(2):
        requests.count = 0
        missing = jvm.java.util.NoSuchClass
        assert type(missing).__name__.endswith("Package")
        assert requests.count == 1


def test_a_static_field_is_read_on_every_access(spark: SparkSession, requests: Requests) -> None:
    jvm: Any = spark._jvm
    assert jvm.java.lang.Integer.MAX_VALUE == 2**31 - 1
    requests.count = 0
    assert jvm.java.lang.Integer.MAX_VALUE == 2**31 - 1
    assert requests.count == 1
