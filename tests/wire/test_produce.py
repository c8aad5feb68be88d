"""Produced records are stored in order, complete, at dense offsets, with every client and codec."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from faults.clients import Client, ConsumedRecord, Record
from faults.clients.port import START, refusal
from faults.servers.server import Server
from tests.support.raw import Raw
from tests.support.times import NOON_MS
from tests.wire.client_choice import clients_that_can

Fresh = Callable[[str], str]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def read_all(
    client: Client, cluster: Server, topic: str, count: int, partition: int = 0
) -> list[ConsumedRecord]:
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, partition): START})
        return consumer.take(count)


def stored_batches(raw: Raw, topic: str) -> list[tuple[int, int]]:
    """Return base offset and codec of each batch, from the bytes that the server sends to a consumer."""
    answer = raw.call(
        "Fetch",
        12,
        maxWaitMs=5000,
        minBytes=1,
        topics=[{"topic": topic, "partitions": [{"partition": 0, "partitionMaxBytes": 1 << 20}]}],
    )
    data = base64.b64decode(answer["responses"][0]["partitions"][0]["records"])
    batches, at = [], 0
    while at < len(data):
        batches.append((int.from_bytes(data[at : at + 8]), data[at + 22] & 7))
        at += 12 + int.from_bytes(data[at + 8 : at + 12])
    return batches


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_any_codec_is_returned_as_it_was_sent(
    cluster: Server, client: Client, librdkafka: Client, raw: Raw, codec: str, fresh: Fresh
) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic)
    records = [Record(b"value %d " % n * 20, b"key %d" % n, timestamp_ms=NOON_MS + n) for n in range(20)]
    offsets = client.produce(cluster.bootstrap, topic, records, codec=codec)
    seen = read_all(librdkafka, cluster, topic, 20)
    assert offsets == [(0, n) for n in range(20)]
    assert [(received.offset, received.key, received.value, received.timestamp_ms) for received in seen] == [
        (n, record.key, record.value, record.timestamp_ms) for n, record in enumerate(records)
    ]
    # The batch is stored in the producer's codec: the server neither decompresses nor recompresses it.
    assert {stored_codec for _, stored_codec in stored_batches(raw, topic)} == {CODECS.index(codec)}


def test_every_client_reads_the_records_of_every_other_in_every_codec(
    cluster: Server, client: Client, clients: dict[str, Client], fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic)
    written = [(writer, codec) for writer in clients.values() for codec in CODECS]
    for writer, codec in written:
        record = Record(f"{writer.name} {codec}".encode(), b"k" * 100)
        writer.produce(cluster.bootstrap, topic, [record], codec=codec)
    seen = read_all(client, cluster, topic, len(written))
    assert [(received.offset, received.value) for received in seen] == [
        (n, f"{writer.name} {codec}".encode()) for n, (writer, codec) in enumerate(written)
    ]


def test_keys_values_headers_and_timestamps_are_returned_as_they_were_sent(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic)
    headers = (("trace", b"\x00\xff"), ("twice", b"1"), ("twice", b"2"), ("empty", b""))
    records = [
        Record(b"plain", timestamp_ms=NOON_MS),
        Record(None, b"tombstone", timestamp_ms=NOON_MS),
        Record(b"", b"", timestamp_ms=1),
        Record(b"with headers", b"k", headers, timestamp_ms=NOON_MS - 86_400_000),
        Record("größer".encode(), b"\x00\x01\xfe", timestamp_ms=NOON_MS + 1),
    ]
    client.produce(cluster.bootstrap, topic, records)
    seen = read_all(client, cluster, topic, 5)
    assert [
        (record.key, record.value, record.headers, record.timestamp_ms, record.append_time) for record in seen
    ] == [(sent.key, sent.value, sent.headers, sent.timestamp_ms, False) for sent in records]


@clients_that_can("null_headers")
def test_a_header_without_a_value_is_not_an_empty_one(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic)
    client.produce(cluster.bootstrap, topic, [Record(b"v", headers=(("none", None), ("empty", b"")))])
    (seen,) = read_all(client, cluster, topic, 1)
    assert seen.headers == (("none", None), ("empty", b""))


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_records_arrive_with_every_acks_setting(
    cluster: Server, client: Client, acks: int, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic)
    offsets = client.produce(cluster.bootstrap, topic, [Record(b"%d" % n) for n in range(10)], acks=acks)
    seen = read_all(client, cluster, topic, 10)
    assert [(record.offset, record.value) for record in seen] == [(n, b"%d" % n) for n in range(10)]
    # Without an acknowledgement a producer cannot know its offsets.
    assert acks == 0 or offsets == [(0, n) for n in range(10)]


def test_an_idempotent_producer_writes_each_record_once_and_in_order(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, partitions=2)
    records = [Record(b"%d" % n * 100, partition=n % 2) for n in range(300)]
    offsets = client.produce(cluster.bootstrap, topic, records, idempotent=True)
    assert offsets == [(n % 2, n // 2) for n in range(300)]
    for partition in (0, 1):
        seen = read_all(client, cluster, topic, 150, partition)
        assert [(record.offset, record.value) for record in seen] == [
            (n, b"%d" % (2 * n + partition) * 100) for n in range(150)
        ]


def test_records_without_a_partition_spread_by_key_and_stay_in_order_per_key(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, partitions=3)
    records = [Record(b"%d" % n, b"key %d" % (n % 7), partition=None) for n in range(70)]
    client.produce(cluster.bootstrap, topic, records)
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, partition): START for partition in range(3)})
        seen = consumer.take(70)
    partitions_by_key: dict[bytes | None, set[int]] = {}
    for record in seen:
        partitions_by_key.setdefault(record.key, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in partitions_by_key.values())
    for key in partitions_by_key:
        values = [int(record.value or b"") for record in seen if record.key == key]
        assert values == sorted(values)
    for partition in range(3):
        offsets = [record.offset for record in seen if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_a_record_larger_than_the_topic_allows_is_refused_and_the_next_one_is_not(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, configs={"max.message.bytes": "20000"})
    large = [Record(b"x" * 30_000)]
    assert refusal(client.produce, cluster.bootstrap, topic, large, request_bytes_max=500_000) == 10
    assert client.produce(cluster.bootstrap, topic, [Record(b"x" * 10_000)]) == [(0, 0)]


def test_a_record_larger_than_the_server_s_default_is_refused(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic)
    large = [Record(b"x" * 1_100_000)]
    assert refusal(client.produce, cluster.bootstrap, topic, large, request_bytes_max=3_000_000) == 10


def test_a_topic_with_append_time_stamps_records_itself(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    client.produce(cluster.bootstrap, topic, [Record(b"1", timestamp_ms=5), Record(b"2", timestamp_ms=6)])
    seen = read_all(client, cluster, topic, 2)
    assert all(record.append_time and record.timestamp_ms > NOON_MS for record in seen)


def test_a_timestamp_too_far_ahead_is_refused(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic)
    ahead = [Record(b"from the year 2100", timestamp_ms=4_102_444_800_000)]
    assert refusal(client.produce, cluster.bootstrap, topic, ahead) == 32


def test_a_topic_of_another_codec_is_recompressed_by_the_server(
    cluster: Server, client: Client, raw: Raw, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, configs={"compression.type": "lz4"})
    client.produce(cluster.bootstrap, topic, [Record(b"abc" * 100) for _ in range(5)], codec="gzip")
    assert [record.value for record in read_all(client, cluster, topic, 5)] == [b"abc" * 100] * 5
    assert {stored_codec for _, stored_codec in stored_batches(raw, topic)} == {CODECS.index("lz4")}


def test_a_produce_to_a_missing_topic_creates_it(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    assert client.produce(cluster.bootstrap, topic, [Record(b"first")]) == [(0, 0)]
    assert [record.value for record in read_all(client, cluster, topic, 1)] == [b"first"]
    assert len(client.admin(cluster.bootstrap).describe_topic(topic)) == 1
