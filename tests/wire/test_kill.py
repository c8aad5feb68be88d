"""Members that die without a word: what they had committed stands, what they had not comes again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.clients import Client, Record
from tests.support.clients.face import Consumer, wait_for
from tests.support.clients.java import JavaClient
from tests.support.java_driver import JavaDriver
from tests.support.server import Server

Fresh = Callable[[str], str]
ROOT = Path(__file__).resolve().parents[2]


def test_after_a_kill_the_successor_starts_at_the_committed_offset(
    cluster: Server, clients: dict[str, Client], fresh: Fresh
) -> None:
    """All clients at once, each in a group of its own, so that their sessions run out together."""
    topics = {name: fresh(name) for name in clients}
    groups = {name: fresh("g") for name in clients}
    for name, client in clients.items():
        client.admin(cluster.bootstrap).create_topic(topics[name])
        client.produce(cluster.bootstrap, topics[name], [Record(b"%d" % n) for n in range(10)])
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "tests.support.worker",
                name,
                cluster.bootstrap,
                topics[name],
                groups[name],
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for name in clients
        if name != "java"
    ]
    machine = JavaDriver()
    java = JavaClient(machine).consumer(cluster.bootstrap, groups["java"])
    java.subscribe(topics["java"])
    assert len(java.take(10)) == 10
    java.commit({(topics["java"], 0): 6})
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    machine.kill()
    for worker in workers:
        worker.kill()
        worker.communicate()

    successors: dict[str, Consumer] = {}
    try:
        for name, client in clients.items():
            successors[name] = client.consumer(cluster.bootstrap, groups[name])
            successors[name].subscribe(topics[name])
        seen = wait_for(
            lambda: all(successor.assignment() for successor in successors.values()),
            list(successors.values()),
            timeout_s=40,
        )
        wait_for(lambda: len(seen) >= 4 * len(clients), list(successors.values()), seen)
        for name in clients:
            assert [one.offset for one in seen if one.topic == topics[name]] == [6, 7, 8, 9]
    finally:
        for successor in successors.values():
            successor.close()


def test_a_survivor_takes_over_the_partitions_of_a_killed_member(
    cluster: Server, librdkafka: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    admin = librdkafka.admin(cluster.bootstrap)
    admin.create_topic(topic, partitions=2)
    machine = JavaDriver()
    doomed = JavaClient(machine).consumer(cluster.bootstrap, group)
    with librdkafka.consumer(cluster.bootstrap, group) as survivor:
        for member in (doomed, survivor):
            member.subscribe(topic)
        wait_for(lambda: len(doomed.assignment()) == len(survivor.assignment()) == 1, [doomed, survivor])
        described = admin.describe_group(group)
        machine.kill()
        librdkafka.produce(cluster.bootstrap, topic, [Record(b"v", partition=n % 2) for n in range(4)])
        seen = wait_for(lambda: len(survivor.assignment()) == 2, [survivor], timeout_s=40)
        wait_for(lambda: len({(one.partition, one.offset) for one in seen}) == 4, [survivor], seen)
        assert len(described["members"]) == 2
        assert len(admin.describe_group(group)["members"]) == 1
