"""librdkafka's mock broker stores batches unchanged, so we can read its batches and it can read ours."""

from __future__ import annotations

import socket
import struct
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.records import RecordLimits, build_batch, check_batch, iter_headers, read_header, read_records

CODEC_NAMES = ["none", "gzip", "snappy", "lz4", "zstd"]
LIMITS = RecordLimits()
CONTENTS = [
    (
        None if i % 7 == 3 else b"key-%d" % i,
        None if i % 11 == 5 else b"value " * (i % 40),
        [("trace", b"%d" % i)] * (i % 3),
    )
    for i in range(300)
]


class Cluster:
    """A mock cluster inside a librdkafka producer, used through its socket."""

    def __init__(self, **settings):
        self.producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 50, **settings})
        broker = next(iter(self.producer.list_topics(timeout=10).brokers.values()))
        self.address = (broker.host, broker.port)

    def call(self, api, version, body):
        frame = struct.pack(">hhih", api, version, 7, 4) + b"test" + body
        with socket.create_connection(self.address, timeout=10) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", self.receive(connection, 4))
            return self.receive(connection, size)[4:]

    @staticmethod
    def receive(connection, size):
        out = b""
        while len(out) < size:
            part = connection.recv(size - len(out))
            assert part, "the connection ended early"
            out += part
        return out

    def fetch(self, topic):
        """All batches of partition 0, raw."""
        received = b""
        offset = 0
        while True:
            partition_request = struct.pack(">iii", -1, 0, 0) + struct.pack(">ib", 2**30, 0)
            partition_request += (
                struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">iiqi", 1, 0, offset, 2**30)
            )
            answer = self.call(1, 4, partition_request)
            at = 4 + 4 + 2 + len(topic) + 4 + 4
            error, _, _, aborted = struct.unpack_from(">hqqi", answer, at)
            assert error == 0
            at += 22 + max(aborted, 0) * 16
            (size,) = struct.unpack_from(">i", answer, at)
            records = answer[at + 4 : at + 4 + max(size, 0)]
            if not records:
                return received
            received += records
            offset = [header.next_offset for _, header in iter_headers(records)][-1]

    def produce(self, topic, batch):
        body = struct.pack(">hhi", -1, -1, 10_000)
        body += struct.pack(">ih", 1, len(topic)) + topic.encode()
        body += struct.pack(">iii", 1, 0, len(batch)) + batch
        answer = self.call(0, 3, body)
        (error,) = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)
        assert error == 0

    def consume(self, topic, count):
        consumer = Consumer({"bootstrap.servers": "{}:{}".format(*self.address), "group.id": "unused"})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            return consumer.consume(count, timeout=30)
        finally:
            consumer.close()


@pytest.mark.parametrize("codec", range(5))
def test_batches_of_librdkafka_are_valid(codec):
    cluster = Cluster(**{"compression.type": CODEC_NAMES[codec]})
    topic = f"t-{uuid.uuid4()}"
    for index, (key, value, headers) in enumerate(CONTENTS):
        cluster.producer.produce(
            topic, value, key, partition=0, timestamp=10**12 + index * 50, headers=headers
        )
    cluster.producer.flush(30)
    octets = cluster.fetch(topic)
    records = []
    codecs = set()
    for position, header in iter_headers(octets):
        batch = memoryview(octets)[position : position + header.size]
        codecs.add(header.codec)
        checked = check_batch(batch, LIMITS)
        received = read_records(batch, LIMITS)
        assert checked.max_timestamp == header.max_timestamp == max(record.timestamp for record in received)
        assert checked.min_timestamp == min(record.timestamp for record in received)
        records += received
    # librdkafka does not compress a batch that would get larger, such as one with a single record on a slow machine.
    assert codec in codecs <= {0, codec}
    assert [(r.key, r.value, r.headers) for r in records] == CONTENTS
    assert [r.timestamp for r in records] == [10**12 + index * 50 for index in range(len(CONTENTS))]


@pytest.mark.parametrize("codec", range(5))
def test_librdkafka_reads_built_batches(codec):
    cluster = Cluster()
    topic = f"t-{uuid.uuid4()}"
    cluster.producer.produce(topic, b"makes the topic", partition=0)
    cluster.producer.flush(30)
    batch = build_batch(CONTENTS, timestamp_ms=10**12, codec=codec)
    assert read_header(batch).codec == codec
    cluster.produce(topic, bytes(batch))
    _, *messages = cluster.consume(topic, 1 + len(CONTENTS))
    assert [(m.key(), m.value(), m.headers() or []) for m in messages] == CONTENTS
    assert {m.timestamp()[1] for m in messages} == {10**12}
