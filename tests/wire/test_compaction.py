"""Compaction: what is left of a topic, and where, after old records were replaced and deletions have expired."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import confluent_kafka
import pytest

from tests.support.clients import Client, Record, Seen
from tests.support.clients.face import START, Consumer
from tests.support.server import Server
from tests.support.times import NOON_MS
from tests.support.waiting import until

Fresh = Callable[[str], str]

SEGMENT_BYTES = 2000
#: Two that no segment holds together, so that everything before the second is sealed.
SEALS = [Record(b"s" * (SEGMENT_BYTES - 200), key=key) for key in (b"seal-1", b"seal-2")]

COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "0.001",
}


def read_all(client: Client, cluster: Server, topic: str) -> dict[int, Seen]:
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        return read_on(consumer, topic)


def read_on(consumer: Consumer, topic: str) -> dict[int, Seen]:
    """Everything from where the consumer is to the end; the last record is never compacted away."""
    _, end = consumer.bounds((topic, 0))
    found: dict[int, Seen] = {}
    while end - 1 not in found:
        found.update({seen.offset: seen for seen in consumer.take(1)})
    return found


def table(found: Mapping[int, Seen]) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {seen.key: (offset, seen.value) for offset, seen in sorted(found.items())}


def churned(client: Client, cluster: Server, topic: str, codec: str = "none") -> dict[bytes, int]:
    """Ten keys, updated six times each in batches of four, then one key deleted; the newest offset of each."""
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
    for record in SEALS:
        ((_, offset),) = client.produce(cluster.bootstrap, topic, [record])
        assert record.key is not None
        placed[record.key] = offset
    return placed


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_newest_record_of_each_key_is_left_at_its_offset(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh, codec: str
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, configs=COMPACTED)
    newest = churned(client, cluster, topic, codec)
    before = read_all(client, cluster, topic)

    def is_compacted() -> bool:
        return sorted(read_all(librdkafka, cluster, topic)) == sorted(newest.values())

    until(is_compacted, "compacted")
    kept = sorted(newest.values())
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        after = read_on(consumer, topic)
        assert consumer.bounds((topic, 0)) == (0, kept[-1] + 1)
        # A reader that asks for an offset that is gone goes on behind it, and so does one that looks for its time.
        for start in (1, 17, kept[0] - 1, kept[0] + 1, kept[-1]):
            consumer.seek((topic, 0), start)
            assert sorted(read_on(consumer, topic)) == [offset for offset in kept if offset >= start]
        times = [NOON_MS, NOON_MS + 30, NOON_MS + 55, NOON_MS + 60]
        found = [consumer.offsets_for_times({(topic, 0): at})[topic, 0] for at in times]
    assert found == [kept[0], kept[0], 55, newest[b"key-3"]]
    assert {key: offset for key, (offset, _) in table(after).items()} == newest
    assert table(after) == table(before)
    for offset, seen in after.items():
        assert (seen.key, seen.value, seen.timestamp_ms) == (
            before[offset].key,
            before[offset].value,
            before[offset].timestamp_ms,
        )
    assert after[newest[b"key-3"]].value is None


def test_a_deletion_goes_once_it_has_expired_and_the_key_is_gone(
    cluster: Server, librdkafka: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(
        topic, configs={**COMPACTED, "delete.retention.ms": "300"}
    )
    newest = churned(librdkafka, cluster, topic)
    del newest[b"key-3"]

    def has_expired() -> bool:
        # Something new, or there would be no reason to compact again.
        newest.update(seal(librdkafka, cluster, topic))
        return b"key-3" not in table(read_all(librdkafka, cluster, topic))

    until(has_expired, "the deletion is gone")
    found = table(read_all(librdkafka, cluster, topic))
    assert {key: offset for key, (offset, _) in found.items()} == newest


def test_records_are_not_compacted_before_their_least_lag(
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
    newest = churned(librdkafka, cluster, topic)
    until(lambda: sorted(read_all(librdkafka, cluster, topic)) == sorted(newest.values()), "compacted")
    librdkafka.admin(cluster.bootstrap).delete_records({(topic, 0): newest[b"key-9"]})
    assert sorted(read_all(librdkafka, cluster, topic)) == sorted(newest.values())[-4:]


def uncommitted(cluster: Server, topic: str) -> dict[int, tuple[bytes | None, bytes | None]]:
    """What is there for a reader that does not ask whether it was committed."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
        }
    )
    try:
        place = confluent_kafka.TopicPartition(topic, 0, 0)
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        found: dict[int, tuple[bytes | None, bytes | None]] = {}
        while end - 1 not in found:
            for message in consumer.consume(100, timeout=1.0):
                assert message.error() is None
                found[message.offset()] = (message.key(), message.value())
        return found
    finally:
        consumer.close()


def test_what_was_aborted_is_compacted_away_and_replaces_nothing(
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
        lambda: {key for key, _ in uncommitted(cluster, topic).values()} == {b"a", b"c", *seals}, "compacted"
    )
    values = {key: value for key, value in uncommitted(cluster, topic).values() if key not in seals}
    assert values == {b"a": b"1", b"c": b"3"}
    found = table(read_all(librdkafka, cluster, topic))
    assert {key: offset for key, (offset, _) in found.items()} == {b"a": 0, b"c": 5, **seals}
    assert found[b"a"][1] == b"1"
