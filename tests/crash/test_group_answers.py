"""Queries about groups while the broker is killed: each returns the correct result or a retriable error."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from confluent_kafka import TopicPartition

from faults.servers.broker_process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.group_admin import GroupAdminProcess

_KILLS = 16
_TOPIC, _GROUP = "queried", "readers"
_COMMITTED_OFFSETS = {_GROUP: {(_TOPIC, 0): 3, (_TOPIC, 2): 1}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap, timeout_s=20.0)
        cluster.ensure_topic(_TOPIC, 3)
        consumer = cluster.consumer({"group.id": _GROUP})
        committed = [
            TopicPartition(_TOPIC, number, offset)
            for (_, number), offset in _COMMITTED_OFFSETS[_GROUP].items()
        ]
        consumer.commit(offsets=committed, asynchronous=False)
        consumer.close()
        yield broker


def _worker_processes() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.is_running() and "headrace.client.group_worker" in child.cmdline()
    ]


def test_group_queries_return_correct_results_or_retriable_errors_while_the_broker_is_killed(
    broker: BrokerProcess,
) -> None:
    """Without the separate worker process, librdkafka would abort the process that calls it."""
    results: list[object] = []
    errors: list[LogError] = []
    stop = threading.Event()

    def query_groups(groups: GroupAdminProcess) -> None:
        while not stop.is_set():
            try:
                results.append(groups.committed_offsets([*groups.list_groups()]))
                group = groups.describe([_GROUP])[_GROUP]
                results.append((group.state, group.members))
            except LogError as error:
                errors.append(error)
                time.sleep(0.005)

    with closing(GroupAdminProcess(Cluster(broker.bootstrap, timeout_s=2.0))) as groups:
        threads = [threading.Thread(target=query_groups, args=(groups,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            rng = random.Random(1)
            for _ in range(_KILLS):
                time.sleep(rng.uniform(0.05, 0.3))
                broker.kill()
                broker.start()
            results_before = len(results)
            deadline = time.monotonic() + 120
            while len(results) < results_before + 4 and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert len(results) >= results_before + 4
    assert [result for result in results if result not in (_COMMITTED_OFFSETS, ("EMPTY", []))] == []
    assert [error for error in errors if not error.retriable] == []


def test_a_query_is_retried_when_its_worker_is_killed_and_close_stops_the_worker(
    broker: BrokerProcess,
) -> None:
    with closing(GroupAdminProcess(Cluster(broker.bootstrap, timeout_s=20.0))) as groups:
        assert groups.list_groups() == {_GROUP: ("EMPTY", "CLASSIC")}
        assert groups.committed_offsets([_GROUP, "nobody"]) == {**_COMMITTED_OFFSETS, "nobody": {}}
        for _ in range(3):
            (process,) = _worker_processes()
            process.kill()
            assert groups.committed_offsets([_GROUP]) == _COMMITTED_OFFSETS
        groups.alter_offsets(_GROUP, [(_TOPIC, 1, 0)])
        assert groups.committed_offsets([_GROUP])[_GROUP][_TOPIC, 1] == 0
    assert _worker_processes() == []
    with pytest.raises(LogError, match="the group client is closed"):
        groups.list_groups()
    unclosed_groups = GroupAdminProcess(Cluster(broker.bootstrap, timeout_s=20.0))
    assert _GROUP in unclosed_groups.describe([_GROUP])
    (process,) = _worker_processes()
    del unclosed_groups
    assert not process.is_running()


def test_a_query_without_a_broker_fails_within_its_timeout_with_the_reason(broker: BrokerProcess) -> None:
    broker.kill()
    with closing(GroupAdminProcess(Cluster(broker.bootstrap, timeout_s=1.0))) as groups:
        with pytest.raises(LogError) as raised:
            groups.committed_offsets([_GROUP])
        assert raised.value.retriable
        with pytest.raises(LogError, match="fetching the offsets of group ''") as invalid_group_error:
            groups.committed_offsets([""])
        assert not invalid_group_error.value.retriable


def test_a_waiting_query_fails_at_once_when_the_client_is_closed(broker: BrokerProcess) -> None:
    groups = GroupAdminProcess(Cluster(broker.bootstrap, timeout_s=600.0))
    groups.list_groups()
    broker.pause()
    errors: list[LogError] = []

    def list_groups() -> None:
        try:
            groups.list_groups()
        except LogError as error:
            errors.append(error)

    query = threading.Thread(target=list_groups)
    query.start()
    time.sleep(0.2)
    groups.close()
    query.join(60)
    broker.resume()
    assert [error.code for error in errors] == ["HR-KAFKA-CLIENT_CLOSED"]


def test_a_response_that_is_too_large_is_refused_and_the_next_query_works(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(GroupAdminProcess(Cluster(broker.bootstrap, timeout_s=20.0))) as groups:
        with monkeypatch.context() as patched:
            patched.setattr("headrace.client.group_admin._RESPONSE_BYTES_MAX", 10)
            patched.setattr("headrace.client.group_admin._CHUNK_BYTES", 4)
            with pytest.raises(LogError, match="more than 0 MiB"):
                groups.committed_offsets([_GROUP])
        assert groups.committed_offsets([_GROUP]) == _COMMITTED_OFFSETS
