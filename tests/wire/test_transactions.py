"""Transactions of every client, on both servers: committed, aborted, fenced, timed out, and their visibility."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults.clients import Client
from faults.clients.port import START, Record, refusal
from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server
from faults.wait import until
from tests.support.transactional import FENCED, Transactional, open_transactional

Fresh = Callable[[str], str]
LAST = b"the last"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def read(client: Client, server: Server, topic: str, *, committed: bool, partitions: int = 1) -> list[bytes]:
    """Return all values up to the last record of each partition, partition by partition."""
    with client.consumer(server.bootstrap, committed=committed) as consumer:
        consumer.assign({(topic, index): START for index in range(partitions)})
        seen: dict[int, list[bytes]] = {index: [] for index in range(partitions)}

        def is_read() -> bool:
            for record in consumer.poll(0.2):
                assert record.value is not None
                seen[record.partition].append(record.value)
            return all(values[-1:] == [LAST] for values in seen.values())

        until(is_read, "the last of every partition", timeout_s=60, pause_s=0)
    return [value for values in seen.values() for value in values if value != LAST]


def finish(client: Client, server: Server, topic: str, partitions: int = 1) -> None:
    """Write a last record to each partition, which every reader sees."""
    client.produce(server.bootstrap, topic, [Record(LAST, partition=index) for index in range(partitions)])


def create_topic_on(client: Client, server: Server, topic: str, partitions: int = 1) -> str:
    client.admin(server.bootstrap).create_topic(topic, partitions)
    return topic


def continue_as_zombie(zombie: Transactional, topic: str) -> None:
    zombie.send(topic, b"too late")
    zombie.commit()


def test_read_committed_returns_only_committed_transactions_and_each_completely(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh
) -> None:
    topic = create_topic_on(librdkafka, cluster, fresh("t"), 2)
    with open_transactional(client, cluster.bootstrap, fresh("id")) as producer:
        producer.begin()
        producer.send(topic, b"a", b"b")
        producer.send(topic, b"c", partition=1)
        producer.commit()
        producer.begin()
        producer.send(topic, b"dropped")
        producer.abort()
        producer.begin()
        producer.send(topic, b"d", partition=1)
        producer.commit()
    finish(librdkafka, cluster, topic, 2)
    assert read(client, cluster, topic, committed=True, partitions=2) == [b"a", b"b", b"c", b"d"]
    everything = [b"a", b"b", b"dropped", b"c", b"d"]
    assert read(client, cluster, topic, committed=False, partitions=2) == everything


def test_a_commit_moves_the_offsets_of_a_group_and_an_abort_does_not(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh
) -> None:
    topic, group = create_topic_on(librdkafka, cluster, fresh("t")), fresh("g")
    librdkafka.produce(cluster.bootstrap, topic, [Record(b"x")] * 10)

    def committed() -> int | None:
        with librdkafka.consumer(cluster.bootstrap, group) as consumer:
            return consumer.committed((topic, 0))[topic, 0]

    with open_transactional(client, cluster.bootstrap, fresh("id")) as producer:
        producer.begin()
        producer.send(topic, b"a")
        producer.offsets(group, {(topic, 0): 4})
        producer.commit()
        # Kafka may show this a moment after the commit.
        until(lambda: committed() == 4, "the commit moves the group")
        producer.begin()
        producer.send(topic, b"b")
        producer.offsets(group, {(topic, 0): 9})
        producer.abort()
        assert committed() == 4


# kafka-python's zombie requests a new epoch by itself, and then Kafka 4.3 loses the successor's transaction (its
# EndTxn gets -1). The embedded broker does not lose it; its unit tests show that.
@pytest.mark.parametrize("client", ["librdkafka", "aiokafka", "java"], indirect=True)
def test_a_zombie_is_fenced_and_none_of_its_records_are_visible(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh, stack: ExitStack
) -> None:
    topic, name = create_topic_on(librdkafka, cluster, fresh("t")), fresh("id")
    zombie = stack.enter_context(open_transactional(client, cluster.bootstrap, name))
    zombie.begin()
    zombie.send(topic, b"from the zombie")
    successor = stack.enter_context(open_transactional(client, cluster.bootstrap, name))
    successor.begin()
    successor.send(topic, b"from the successor")

    assert refusal(continue_as_zombie, zombie, topic) in FENCED
    successor.commit()
    finish(librdkafka, cluster, topic)
    assert read(client, cluster, topic, committed=True) == [b"from the successor"]
    assert read(librdkafka, cluster, topic, committed=False) == [b"from the zombie", b"from the successor"]


def test_a_zombie_that_only_commits_is_fenced_as_well(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh, stack: ExitStack
) -> None:
    topic, name = create_topic_on(librdkafka, cluster, fresh("t")), fresh("id")
    zombie = stack.enter_context(open_transactional(client, cluster.bootstrap, name))
    zombie.begin()
    zombie.send(topic, b"from the zombie")
    stack.enter_context(open_transactional(client, cluster.bootstrap, name))
    assert refusal(zombie.commit) in FENCED
    finish(librdkafka, cluster, topic)
    assert read(client, cluster, topic, committed=True) == []


def test_concurrent_transactions_in_one_partition_end_independently(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh, stack: ExitStack
) -> None:
    topic = create_topic_on(librdkafka, cluster, fresh("t"))
    producers = [
        stack.enter_context(open_transactional(client, cluster.bootstrap, fresh(f"id-{n}"))) for n in range(3)
    ]
    for producer in producers:
        producer.begin()
    for round_ in range(2):
        for number, producer in enumerate(producers):
            producer.send(topic, b"%d of %d" % (round_, number))
    producers[1].abort()
    producers[2].commit()
    producers[0].commit()
    finish(librdkafka, cluster, topic)
    wanted = [b"0 of 0", b"0 of 2", b"1 of 0", b"1 of 2"]
    assert read(client, cluster, topic, committed=True) == wanted


def test_an_open_transaction_hides_later_records_until_it_times_out(
    cluster: Server, librdkafka: Client, fresh: Fresh
) -> None:
    topic = create_topic_on(librdkafka, cluster, fresh("t"))
    with open_transactional(librdkafka, cluster.bootstrap, fresh("id"), timeout_ms=2_000) as producer:
        producer.begin()
        producer.send(topic, b"never committed")
        finish(librdkafka, cluster, topic)
        with librdkafka.consumer(cluster.bootstrap, committed=True) as consumer:
            consumer.assign({(topic, 0): START})
            assert consumer.poll(0.5) == []
        # Kafka checks for such transactions every ten seconds.
        assert read(librdkafka, cluster, topic, committed=True) == []
        assert refusal(continue_as_zombie, producer, topic) in FENCED


@pytest.mark.parametrize("client", ["librdkafka", "java"], indirect=True)
def test_a_transaction_continues_after_the_broker_was_killed(
    client: Client, librdkafka: Client, tmp_path: Path, fresh: Fresh, stack: ExitStack
) -> None:
    server = start_headrace(tmp_path)
    stack.callback(lambda: server.kill())
    topic = create_topic_on(librdkafka, server, fresh("t"), 2)
    producer: Transactional = stack.enter_context(open_transactional(client, server.bootstrap, fresh("id")))
    for round_ in range(3):
        producer.begin()
        producer.send(topic, b"%d before" % round_)
        server.kill()
        server = start_headrace(tmp_path, port=server.port)
        producer.send(topic, b"%d after" % round_, partition=1)
        producer.commit()
    finish(librdkafka, server, topic, 2)
    wanted = [b"%d %s" % (round_, when) for when in (b"before", b"after") for round_ in range(3)]
    assert read(client, server, topic, committed=True, partitions=2) == wanted
