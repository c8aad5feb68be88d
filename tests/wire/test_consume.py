"""Reading from any position, in order, repeatedly, without affecting others."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from faults.clients import Client, ConsumedRecord, Record
from faults.clients.port import END, START, refusal
from faults.servers.server import Server
from faults.wait import until
from tests.support.times import NOON_MS
from tests.wire.client_choice import clients_that_can

Fresh = Callable[[str], str]


def create_filled_topic(client: Client, cluster: Server, topic: str, count: int, partitions: int = 1) -> None:
    """Create a topic with this many records per partition, one second apart; the n-th has value n."""
    client.admin(cluster.bootstrap).create_topic(topic, partitions)
    for partition in range(partitions):
        records = [
            Record(b"%d" % n, partition=partition, timestamp_ms=NOON_MS + 1000 * n) for n in range(count)
        ]
        client.produce(cluster.bootstrap, topic, records)


def values(seen: list[ConsumedRecord]) -> list[int]:
    return [int(record.value or b"") for record in seen]


def test_a_reader_starts_at_the_beginning_at_an_offset_or_at_the_end(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 20)
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        assert values(consumer.take(20)) == list(range(20))
        consumer.seek((topic, 0), 13)
        assert values(consumer.take(7)) == list(range(13, 20))
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): END})
        assert consumer.poll(0.3) == []
        client.produce(cluster.bootstrap, topic, [Record(b"20")])
        assert values(consumer.take(1)) == [20]


def test_offsets_are_found_by_time(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 10, partitions=2)
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START, (topic, 1): START})
        observed = [
            consumer.offsets_for_times({(topic, 1): at})[topic, 1]
            for at in (0, NOON_MS, NOON_MS + 1, NOON_MS + 4000, NOON_MS + 9000, NOON_MS + 9001)
        ]
        both = consumer.offsets_for_times({(topic, 0): NOON_MS + 2500, (topic, 1): NOON_MS + 99_000})
        bounds = consumer.bounds((topic, 0))
    assert observed == [0, 0, 1, 4, 9, None]
    assert both == {(topic, 0): 3, (topic, 1): None}
    assert bounds == (0, 10)


@clients_that_can("list_offset")
def test_the_offset_of_the_greatest_timestamp_is_found_even_if_it_is_not_the_last(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    admin = client.admin(cluster.bootstrap)
    admin.create_topic(topic)
    for at in (5, 9, 7):
        client.produce(cluster.bootstrap, topic, [Record(b"v", timestamp_ms=NOON_MS + at)])
    specs: list[str | int] = ["earliest", "latest", "max_timestamp", NOON_MS + 6, NOON_MS + 9]
    assert [admin.list_offset((topic, 0), spec) for spec in specs] == [0, 3, 1, 1, 1]


def test_a_seek_changes_no_committed_offset(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic, 30)
    with client.consumer(cluster.bootstrap, group) as worker:
        worker.subscribe(topic)
        worker.take(30)
        worker.commit({(topic, 0): 17})
        before = client.admin(cluster.bootstrap).group_offsets(group)
        with client.consumer(cluster.bootstrap) as other_reader:
            other_reader.assign({(topic, 0): START})
            for _ in range(3):
                other_reader.take(30)
                other_reader.seek((topic, 0), 0)
        after = client.admin(cluster.bootstrap).group_offsets(group)
        # The worker's own position has not moved either: the next record is the one after its last.
        client.produce(cluster.bootstrap, topic, [Record(b"30")])
        assert values(worker.take(1)) == [30]
    assert before == after == {(topic, 0): 17}


def test_a_reader_at_the_end_gets_the_next_record_immediately(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh
) -> None:
    """The server may delay the fetch for 25 s; the record must arrive at once, not after that time."""
    topic = fresh("t")
    create_filled_topic(librdkafka, cluster, topic, 1)
    waiting_ms = 25_000
    with client.consumer(cluster.bootstrap, max_wait_ms=waiting_ms) as consumer:
        consumer.assign({(topic, 0): START})
        consumer.take(1)
        with ThreadPoolExecutor(1) as thread:
            pending = thread.submit(consumer.take, 1, 30.0)
            # Wait until the fetch has probably reached the server; otherwise the test is only easier.
            time.sleep(0.3)
            librdkafka.produce(cluster.bootstrap, topic, [Record(b"1")])
            sent = time.monotonic()
            assert values(pending.result()) == [1]
            took_s = time.monotonic() - sent
    assert took_s < waiting_ms / 1000 / 5


def test_a_paused_partition_returns_nothing_until_it_is_resumed(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 5, partitions=2)
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START, (topic, 1): START})
        consumer.pause((topic, 0))
        first = consumer.take(5)
        assert {record.partition for record in first} == {1}
        consumer.resume((topic, 0))
        assert [(record.partition, record.offset) for record in consumer.take(5)] == [
            (0, n) for n in range(5)
        ]


def test_a_reader_below_the_first_offset_gets_an_out_of_range_error(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 10)
    kept_from = client.admin(cluster.bootstrap).delete_records({(topic, 0): 6})
    with client.consumer(cluster.bootstrap, reset="error") as strict:
        strict.assign({(topic, 0): 2})
        assert refusal(strict.take, 1) == 1
    with client.consumer(cluster.bootstrap) as lenient:
        lenient.assign({(topic, 0): 2})
        bounds = lenient.bounds((topic, 0))
        assert values(lenient.take(4)) == [6, 7, 8, 9]
    assert kept_from == {(topic, 0): 6}
    assert bounds == (6, 10)


def test_a_reader_beyond_the_end_gets_an_error(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 3)
    with client.consumer(cluster.bootstrap, reset="error") as consumer:
        consumer.assign({(topic, 0): 1000})
        assert refusal(consumer.take, 1) == 1


def test_records_larger_than_the_fetch_limits_are_returned_one_by_one(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, configs={"max.message.bytes": "5000000"})
    for n in range(3):
        record = Record(b"%d" % n * 2_000_000)
        librdkafka.produce(cluster.bootstrap, topic, [record], request_bytes_max=4_000_000)
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        seen = consumer.take(3)
    assert [(received.offset, received.value[:1] if received.value else b"") for received in seen] == [
        (0, b"0"),
        (1, b"1"),
        (2, b"2"),
    ]


def test_many_small_batches_across_partitions_keep_dense_offsets_and_order(
    cluster: Server, client: Client, clients: dict[str, Client], fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, partitions=4)
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    for turn, writer in enumerate([*clients.values(), *clients.values()]):
        batch = [
            Record(b"%s %d %d" % (writer.name.encode(), turn, n), partition=(turn + n) % 4) for n in range(40)
        ]
        writer.produce(cluster.bootstrap, topic, batch, codec=["none", "lz4", "zstd", "gzip"][turn % 4])
        for record in batch:
            assert record.partition is not None
            assert record.value is not None
            sent[record.partition].append(record.value)
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, partition): START for partition in range(4)})
        seen = consumer.take(320)
    for partition, expected in sent.items():
        found = [(received.offset, received.value) for received in seen if received.partition == partition]
        assert found == list(enumerate(expected))


def test_a_recreated_topic_is_another_topic(cluster: Server, client: Client, fresh: Fresh) -> None:
    """Nothing of the old topic is served under the new one, neither records nor offsets."""
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 10)
    admin = client.admin(cluster.bootstrap)
    admin.delete_topic(topic)
    # Kafka removes the name a moment after its response.
    until(lambda: refusal(admin.create_topic, topic) == 0, "the topic is made again")
    assert client.produce(cluster.bootstrap, topic, [Record(b"100")]) == [(0, 0)]
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        assert values(consumer.take(1)) == [100]
        assert consumer.bounds((topic, 0)) == (0, 1)


def test_deleting_a_topic_does_not_affect_the_other_topics_of_its_reader(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    doomed, kept = fresh("doomed"), fresh("kept")
    create_filled_topic(client, cluster, doomed, 3)
    create_filled_topic(client, cluster, kept, 3)
    with client.consumer(cluster.bootstrap, fresh("g")) as consumer:
        consumer.subscribe(doomed, kept)
        consumer.take(6)
        consumer.commit()
        client.admin(cluster.bootstrap).delete_topic(doomed)
        client.produce(cluster.bootstrap, kept, [Record(b"3")])
        seen = consumer.take(1)
    assert [(record.topic, record.offset) for record in seen] == [(kept, 3)]
