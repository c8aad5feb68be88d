"""Compaction: the records and offsets that remain after old records were replaced and tombstones expired."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import confluent_kafka
import pytest

from faults.clients import Client, ConsumedRecord, Record
from faults.clients.port import START, Consumer
from faults.servers.server import Server
from faults.wait import until
from tests.support.times import NOON_MS

Fresh = Callable[[str], str]

SEGMENT_BYTES = 2000
#: Two records that do not fit into one segment, so that the segments before the second record are closed.
SEALING_RECORDS = [Record(b"s" * (SEGMENT_BYTES - 200), key=key) for key in (b"seal-1", b"seal-2")]

COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "0.001",
}


def read_all(client: Client, cluster: Server, topic: str) -> dict[int, ConsumedRecord]:
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        return read_to_end(consumer, topic)


def read_to_end(consumer: Consumer, topic: str) -> dict[int, ConsumedRecord]:
    """Read from the consumer's position to the end. Compaction never removes the last record."""
    _, end = consumer.bounds((topic, 0))
    found: dict[int, ConsumedRecord] = {}
    while end - 1 not in found:
        found.update({seen.offset: seen for seen in consumer.take(1)})
    return found


def newest_by_key(found: Mapping[int, ConsumedRecord]) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {seen.key: (offset, seen.value) for offset, seen in sorted(found.items())}


def update_keys(client: Client, cluster: Server, topic: str, codec: str = "none") -> dict[bytes, int]:
    """Update ten keys six times each, in batches of four, then delete one key; return the newest offset of each."""
    newest: dict[bytes, int] = {}
    for first in range(0, 60, 4):
        records = [
            Record(b"value-%d" % n, key=b"key-%d" % (n % 10), timestamp_ms=NOON_MS + n)
            for n in range(first, first + 4)
        ]
        placed = client.produce(cluster.bootstrap, topic, records, codec=codec)
        newest.update({record.key: offset for record, (_, offset) in zip(records, placed, strict=True)})  # type: ignore[misc]
    ((_, gone),) = client.produce(cluster.bootstrap, topic, [Record(None, key=b"key-3")])
    newest[b"key-3"] = gone
    newest |= seal(client, cluster, topic)
    return newest


def seal(client: Client, cluster: Server, topic: str) -> dict[bytes, int]:
    placed = {}
    for record in SEALING_RECORDS:
        ((_, offset),) = client.produce(cluster.bootstrap, topic, [record])
        assert record.key is not None
        placed[record.key] = offset
    return placed


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_compaction_keeps_the_newest_record_of_each_key_at_its_offset(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh, codec: str
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, configs=COMPACTED)
    newest = update_keys(client, cluster, topic, codec)
    before = read_all(client, cluster, topic)

    def is_compacted() -> bool:
        return sorted(read_all(librdkafka, cluster, topic)) == sorted(newest.values())

    until(is_compacted, "compacted")
    kept = sorted(newest.values())
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        after = read_to_end(consumer, topic)
        assert consumer.bounds((topic, 0)) == (0, kept[-1] + 1)
        # A reader that starts at a removed offset, or at its time, continues with the next record.
        for start in (1, 17, kept[0] - 1, kept[0] + 1, kept[-1]):
            consumer.seek((topic, 0), start)
            assert sorted(read_to_end(consumer, topic)) == [offset for offset in kept if offset >= start]
        times = [NOON_MS, NOON_MS + 30, NOON_MS + 55, NOON_MS + 60]
        found = [consumer.offsets_for_times({(topic, 0): at})[topic, 0] for at in times]
    assert found == [kept[0], kept[0], 55, newest[b"key-3"]]
    assert {key: offset for key, (offset, _) in newest_by_key(after).items()} == newest
    assert newest_by_key(after) == newest_by_key(before)
    for offset, seen in after.items():
        assert (seen.key, seen.value, seen.timestamp_ms) == (
            before[offset].key,
            before[offset].value,
            before[offset].timestamp_ms,
        )
    assert after[newest[b"key-3"]].value is None


def test_compaction_removes_an_expired_tombstone(cluster: Server, librdkafka: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(
        topic, configs={**COMPACTED, "delete.retention.ms": "300"}
    )
    newest = update_keys(librdkafka, cluster, topic)
    del newest[b"key-3"]

    def has_expired() -> bool:
        # Write a new record; otherwise no compaction would be due.
        newest.update(seal(librdkafka, cluster, topic))
        return b"key-3" not in newest_by_key(read_all(librdkafka, cluster, topic))

    until(has_expired, "the deletion is gone")
    found = newest_by_key(read_all(librdkafka, cluster, topic))
    assert {key: offset for key, (offset, _) in found.items()} == newest


def test_records_are_not_compacted_before_min_compaction_lag_ms(
    cluster: Server, librdkafka: Client, fresh: Fresh
) -> None:
    slow, quick = fresh("slow"), fresh("quick")
    admin = librdkafka.admin(cluster.bootstrap)
    lag = {"min.compaction.lag.ms": "3600000", "max.compaction.lag.ms": "7200000"}
    admin.create_topic(slow, configs={**COMPACTED, **lag})
    admin.create_topic(quick, configs=COMPACTED)
    for topic in (slow, quick):
        for number in range(20):
            librdkafka.produce(cluster.bootstrap, topic, [Record(b"%d" % number, key=b"k")])
        seal(librdkafka, cluster, topic)
    until(lambda: len(read_all(librdkafka, cluster, quick)) == 3, "compacted")
    assert len(read_all(librdkafka, cluster, slow)) == 22


def test_a_compacted_topic_with_retention_loses_its_oldest_segments_too(
    cluster: Server, librdkafka: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    both = {**COMPACTED, "cleanup.policy": "compact,delete", "retention.bytes": "100000"}
    librdkafka.admin(cluster.bootstrap).create_topic(topic, configs=both)
    newest = update_keys(librdkafka, cluster, topic)
    until(lambda: sorted(read_all(librdkafka, cluster, topic)) == sorted(newest.values()), "compacted")
    librdkafka.admin(cluster.bootstrap).delete_records({(topic, 0): newest[b"key-9"]})
    assert sorted(read_all(librdkafka, cluster, topic)) == sorted(newest.values())[-4:]


def read_uncommitted(cluster: Server, topic: str) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return key and value of all records by offset, including uncommitted and aborted records."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
        }
    )
    try:
        partition = confluent_kafka.TopicPartition(topic, 0, 0)
        consumer.assign([partition])
        _, end = consumer.get_watermark_offsets(partition, timeout=30)
        found: dict[int, tuple[bytes | None, bytes | None]] = {}
        while end - 1 not in found:
            for message in consumer.consume(100, timeout=1.0):
                assert message.error() is None
                found[message.offset()] = (message.key(), message.value())
        return found
    finally:
        consumer.close()


def test_aborted_records_are_compacted_and_replace_nothing(
    cluster: Server, librdkafka: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic, configs=COMPACTED)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": fresh("id"), "linger.ms": 0}
    )
    producer.init_transactions(60)
    for records, commits in (
        ([(b"a", b"1")], True),
        ([(b"a", b"aborted"), (b"b", b"aborted")], False),
        ([(b"c", b"3")], True),
    ):
        producer.begin_transaction()
        for key, value in records:
            producer.produce(topic, value, key, partition=0)
        assert producer.flush(60) == 0
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    seals = seal(librdkafka, cluster, topic)
    until(
        lambda: {key for key, _ in read_uncommitted(cluster, topic).values()} == {b"a", b"c", *seals},
        "compacted",
    )
    values = {key: value for key, value in read_uncommitted(cluster, topic).values() if key not in seals}
    assert values == {b"a": b"1", b"c": b"3"}
    found = newest_by_key(read_all(librdkafka, cluster, topic))
    assert {key: offset for key, (offset, _) in found.items()} == {b"a": 0, b"c": 5, **seals}
    assert found[b"a"][1] == b"1"
