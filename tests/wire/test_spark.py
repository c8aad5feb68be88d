"""Spark 4.2's Kafka connector, with the Java client 3.9 inside: batch and streaming, read and write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from faults.clients import Client, Record
from faults.clients.port import START
from faults.servers.server import Server
from tests.support.times import NOON_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fresh = Callable[[str], str]


@pytest.fixture
def filled(cluster: Server, librdkafka: Client, fresh: Fresh) -> str:
    """A topic of two partitions with ten records each, a second apart."""
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic, partitions=2)
    records = [
        Record(b"value %d" % n, b"key %d" % (n % 3), (("n", b"%d" % n),), n % 2, NOON_MS + 1000 * n)
        for n in range(20)
    ]
    librdkafka.produce(cluster.bootstrap, topic, records)
    return topic


def reader(spark: SparkSession, cluster: Server, topic: str, **options: str) -> DataFrame:
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    return source.option("subscribe", topic).options(**options).load()


def read_stored(
    client: Client, cluster: Server, topic: str, count: int
) -> list[tuple[bytes | None, bytes | None]]:
    with client.consumer(cluster.bootstrap) as consumer:
        consumer.assign({(topic, 0): START})
        seen = consumer.take(count)
        assert consumer.bounds((topic, 0)) == (0, count)
    return [(record.key, record.value) for record in seen]


def test_a_batch_reads_everything_with_keys_headers_and_times(
    cluster: Server, spark: SparkSession, filled: str
) -> None:
    rows = reader(spark, cluster, filled, includeHeaders="true").orderBy("partition", "offset").collect()
    observed = [
        (row.partition, row.offset, bytes(row.key), bytes(row.value), row.headers[0].key, row.timestampType)
        for row in rows
    ]
    assert observed == [
        (p, n // 2, b"key %d" % (n % 3), b"value %d" % n, "n", 0) for p in range(2) for n in range(p, 20, 2)
    ]
    assert sorted(int(row.timestamp.timestamp() * 1000) for row in rows) == [
        NOON_MS + 1000 * n for n in range(20)
    ]


def test_a_batch_reads_between_offsets_and_from_a_time(
    cluster: Server, spark: SparkSession, filled: str
) -> None:
    between = {
        "startingOffsets": f'{{"{filled}": {{"0": 2, "1": -2}}}}',
        "endingOffsets": f'{{"{filled}": {{"0": 5, "1": -1}}}}',
    }
    rows = reader(spark, cluster, filled, **between).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(0, 2), (0, 3), (0, 4)] + [
        (1, n) for n in range(10)
    ]
    since = {"startingTimestamp": str(NOON_MS + 15_000)}
    rows = reader(spark, cluster, filled, **since).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(0, 8), (0, 9), (1, 7), (1, 8), (1, 9)]


def test_a_batch_is_written_completely(
    cluster: Server, spark: SparkSession, librdkafka: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic)
    rows = spark.range(100).selectExpr("cast(id % 7 as string) as key", "cast(id as string) as value")
    sink = rows.write.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    sink.option("kafka.compression.type", "zstd").option("topic", topic).save()
    found = read_stored(librdkafka, cluster, topic, 100)
    assert sorted(found) == sorted((b"%d" % (n % 7), b"%d" % n) for n in range(100))


def test_a_stream_reads_derives_writes_and_continues_after_a_stop(
    cluster: Server, spark: SparkSession, librdkafka: Client, filled: str, fresh: Fresh, tmp_path: Path
) -> None:
    target = fresh("out")
    librdkafka.admin(cluster.bootstrap).create_topic(target)

    def run_until_caught_up() -> list[Any]:
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
        rows = source.option("subscribe", filled).option("startingOffsets", "earliest").load()
        derived = rows.selectExpr("key", "concat('seen ', cast(value as string)) as value")
        sink = derived.writeStream.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
        checkpoint = str(tmp_path / "checkpoint")
        query = (
            sink.option("topic", target).option("checkpointLocation", checkpoint).trigger(availableNow=True)
        )
        running = query.start()
        assert running.awaitTermination(60)
        return [progress["numInputRows"] for progress in running.recentProgress]

    assert sum(run_until_caught_up()) == 20
    first = read_stored(librdkafka, cluster, target, 20)
    assert sorted(value or b"" for _, value in first) == sorted(b"seen value %d" % n for n in range(20))
    librdkafka.produce(cluster.bootstrap, filled, [Record(b"value 20"), Record(b"value 21", partition=1)])
    # The second run starts at the offsets of the checkpoint: it reads and writes only new records.
    assert sum(run_until_caught_up()) == 2
    assert read_stored(librdkafka, cluster, target, 22)[:20] == first


def test_a_stream_of_a_topic_pattern_updates_its_counts(
    cluster: Server, spark: SparkSession, librdkafka: Client, filled: str
) -> None:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
    rows = source.option("subscribePattern", f"{filled}.*").option("startingOffsets", "earliest").load()
    counts = rows.groupBy("key").count()
    name = "counts_" + "".join(letter for letter in filled if letter.isalnum())
    query = counts.writeStream.format("memory").queryName(name).outputMode("complete").start()
    try:
        query.processAllAvailable()
        librdkafka.produce(cluster.bootstrap, filled, [Record(b"more", b"key 0")])
        query.processAllAvailable()
        found = {bytes(row.key): row["count"] for row in spark.table(name).collect()}
    finally:
        query.stop()
    assert found == {b"key 0": 8, b"key 1": 7, b"key 2": 6}


def test_a_read_of_a_missing_topic_fails_with_its_name(
    cluster: Server, spark: SparkSession, fresh: Fresh
) -> None:
    topic = fresh("nowhere")
    once = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "10"}
    with pytest.raises(Exception, match=r"UnknownTopicOrPartition|does not exist|missing"):
        reader(spark, cluster, topic, **once, **{"kafka.allow.auto.create.topics": "false"}).count()
