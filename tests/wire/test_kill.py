"""After a member is killed, its successor reads again only the records whose offsets were not committed."""

from __future__ import annotations

import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from faults.clients import Client, Record
from faults.clients.java import JavaClient
from faults.clients.java_driver import JavaDriver
from faults.clients.port import ConsumedRecord, Consumer, wait_for
from faults.servers.server import Server

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Aftermath:
    """Observations after the kill. All members are killed together, so that the tests wait for one session timeout."""

    reread: dict[str, list[int]] = field(default_factory=dict)
    survivor_read: set[tuple[int, int]] = field(default_factory=set)
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


def worker(name: str, cluster: Server, topic: str, group: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.support.worker",
        name,
        cluster.bootstrap,
        topic,
        group,
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def aftermath(cluster: Server, clients: dict[str, Client]) -> Aftermath:
    """Kill one worker per client, each in its own group, and one of two members of another group."""
    result = Aftermath()
    stem = f"kill-{uuid.uuid4().hex[:6]}"
    topics = {name: f"{stem}.{name}" for name in clients}
    shared = f"{stem}.shared"
    librdkafka = clients["librdkafka"]
    admin = librdkafka.admin(cluster.bootstrap)
    admin.create_topic(shared, partitions=2)
    for topic in topics.values():
        admin.create_topic(topic)
        librdkafka.produce(cluster.bootstrap, topic, [Record(b"%d" % n) for n in range(10)])
    # A member that left cleanly just before must not stop the server from watching the sessions of others.
    with librdkafka.consumer(cluster.bootstrap, f"{stem}.peaceful") as peaceful:
        peaceful.subscribe(shared)
        wait_for(lambda: len(peaceful.held) == 2, [peaceful])
    workers = [worker(name, cluster, topics[name], topics[name]) for name in clients if name != "java"]
    jvm = JavaDriver()
    java = JavaClient(jvm).consumer(cluster.bootstrap, topics["java"], session_ms=6000)
    doomed = JavaClient(jvm).consumer(cluster.bootstrap, shared, session_ms=6000)
    members: dict[str, Consumer] = {"survivor": librdkafka.consumer(cluster.bootstrap, shared)}
    survivor = members["survivor"]
    try:
        java.subscribe(topics["java"])
        assert len(java.take(10)) == 10
        java.commit({(topics["java"], 0): 6})
        for member in (doomed, survivor):
            member.subscribe(shared)
        wait_for(lambda: len(doomed.held) == len(survivor.held) == 1, [doomed, survivor])
        result.before = admin.describe_group(shared)
        for each in workers:
            assert each.stdout is not None
            assert each.stdout.readline() == b"ready\n"
        jvm.kill()
        for each in workers:
            each.kill()
            each.communicate()
        librdkafka.produce(cluster.bootstrap, shared, [Record(b"v", partition=n % 2) for n in range(4)])
        for name, client in clients.items():
            members[name] = client.consumer(cluster.bootstrap, topics[name])
            members[name].subscribe(topics[name])
        seen: list[ConsumedRecord] = []

        def all_read() -> bool:
            found = {(each.topic, each.partition, each.offset) for each in seen}
            return len(found) >= 4 * (len(clients) + 1) and len(survivor.held) == 2

        wait_for(all_read, list(members.values()), seen, timeout_s=240)
        result.after = admin.describe_group(shared)
    finally:
        for member in members.values():
            member.close()
    for name, topic in topics.items():
        result.reread[name] = [each.offset for each in seen if each.topic == topic]
    result.survivor_read = {(each.partition, each.offset) for each in seen if each.topic == shared}
    return result


def test_after_a_kill_the_successor_starts_at_the_committed_offset(
    aftermath: Aftermath, clients: dict[str, Client]
) -> None:
    assert aftermath.reread == {name: [6, 7, 8, 9] for name in clients}


def test_a_survivor_takes_over_the_partitions_of_a_killed_member(aftermath: Aftermath) -> None:
    assert [len(partitions) for _, partitions in aftermath.before["members"]] == [1, 1]
    assert [len(partitions) for _, partitions in aftermath.after["members"]] == [2]
    assert aftermath.survivor_read == {(0, 0), (0, 1), (1, 0), (1, 1)}
