"""kcat 1.7, with an old librdkafka: old clients still work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from faults.clients import Client, Record
from faults.servers.server import Server
from tests.support.raw import Raw
from tests.support.times import NOON_MS
from tests.wire.test_produce import CODECS, stored_batches

Fresh = Callable[[str], str]
# librdkafka waits half a second before it queries an unknown leader again.
QUICK = ["-X", "topic.metadata.refresh.fast.interval.ms=20", "-X", "fetch.wait.max.ms=100"]


def kcat(cluster: Server, *arguments: str, given: bytes = b"") -> str:
    command = ["kcat", "-b", cluster.bootstrap, *QUICK, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def read(cluster: Server, topic: str, *options: str) -> list[dict[str, Any]]:
    """Read all records up to the end, as kcat's JSON."""
    lines = kcat(cluster, "-C", "-t", topic, "-e", "-q", "-J", *options).splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_writes_in_every_codec_and_reads_it_back(
    cluster: Server, librdkafka: Client, raw: Raw, codec: str, fresh: Fresh
) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic)
    lines = "".join(f"k{n}:value {n} {'x' * 100}\n" for n in range(50))
    kcat(cluster, "-P", "-t", topic, "-K:", "-z", codec, "-p", "0", given=lines.encode())
    seen = read(cluster, topic)
    assert [(record["offset"], record["key"], record["payload"]) for record in seen] == [
        (n, f"k{n}", f"value {n} {'x' * 100}") for n in range(50)
    ]
    # Old librdkafka silently sends uncompressed batches to a server whose versions it considers too new.
    assert {stored_codec for _, stored_codec in stored_batches(raw, topic)} == {CODECS.index(codec)}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_kcat_writes_with_every_acknowledgement(cluster: Server, acks: str, fresh: Fresh) -> None:
    topic = fresh("t")
    kcat(cluster, "-P", "-t", topic, "-X", f"acks={acks}", given=b"a\nb\nc\n")
    assert [record["payload"] for record in read(cluster, topic)] == ["a", "b", "c"]


def test_kcat_writes_idempotently(cluster: Server, fresh: Fresh) -> None:
    topic = fresh("t")
    kcat(cluster, "-P", "-t", topic, "-X", "enable.idempotence=true", given=b"a\nb\nc\n")
    assert [(record["offset"], record["payload"]) for record in read(cluster, topic)] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]


def test_kcat_carries_headers_nulls_and_keys(cluster: Server, fresh: Fresh) -> None:
    topic = fresh("t")
    kcat(cluster, "-P", "-t", topic, "-K:", "-Z", "-H", "trace=1", "-H", "trace=2", given=b"gone:\nkept:v\n")
    observed = [(record["key"], record["payload"], record["headers"]) for record in read(cluster, topic)]
    headers = ["trace", "1", "trace", "2"]
    assert observed == [("gone", None, headers), ("kept", "v", headers)]


def test_kcat_reads_from_offsets_the_end_and_times(cluster: Server, librdkafka: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic)
    records = [Record(b"%d" % n, timestamp_ms=NOON_MS + n) for n in range(10)]
    librdkafka.produce(cluster.bootstrap, topic, records)
    observed = {
        offset: [record["offset"] for record in read(cluster, topic, "-p", "0", "-o", offset)]
        for offset in ("beginning", "7", "-2", f"s@{NOON_MS + 6}")
    }
    assert observed == {
        "beginning": list(range(10)),
        "7": [7, 8, 9],
        "-2": [8, 9],
        f"s@{NOON_MS + 6}": [6, 7, 8, 9],
    }


def test_kcat_finds_offsets_by_time(cluster: Server, librdkafka: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic)
    records = [Record(b"v", timestamp_ms=NOON_MS + n) for n in range(10)]
    librdkafka.produce(cluster.bootstrap, topic, records)
    found = [kcat(cluster, "-Q", "-t", f"{topic}:0:{at}") for at in (NOON_MS + 4, -1, -2)]
    assert [line.split("offset ")[1].strip() for line in found] == ["4", "10", "0"]


def test_kcat_lists_brokers_topics_and_partitions(cluster: Server, librdkafka: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic, partitions=2)
    listed = json.loads(kcat(cluster, "-L", "-J", "-t", topic))
    assert listed["brokers"] == [{"id": 1, "name": cluster.bootstrap}]
    assert listed["controllerid"] == 1
    partitions = [
        {"partition": index, "leader": 1, "replicas": [{"id": 1}], "isrs": [{"id": 1}]} for index in (0, 1)
    ]
    assert listed["topics"] == [{"topic": topic, "partitions": partitions}]
    all_metadata = json.loads(kcat(cluster, "-L", "-J"))
    assert topic in {listed_topic["topic"] for listed_topic in all_metadata["topics"]}


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_kcat_reads_in_a_group_and_continues_where_it_stopped(
    cluster: Server, librdkafka: Client, assignor: str, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    admin = librdkafka.admin(cluster.bootstrap)
    admin.create_topic(topic, partitions=2)

    def read_in_group(count: int) -> list[tuple[int, int]]:
        options = ["-X", "auto.offset.reset=earliest", "-X", f"partition.assignment.strategy={assignor}"]
        text = kcat(cluster, "-G", group, "-q", "-J", "-c", str(count), *options, topic)
        return sorted(
            (record["partition"], record["offset"]) for record in map(json.loads, text.splitlines())
        )

    librdkafka.produce(cluster.bootstrap, topic, [Record(b"v", partition=n % 2) for n in range(10)])
    assert read_in_group(10) == [(p, n) for p in range(2) for n in range(5)]
    assert admin.group_offsets(group) == {(topic, 0): 5, (topic, 1): 5}
    librdkafka.produce(cluster.bootstrap, topic, [Record(b"v", partition=n % 2) for n in range(4)])
    assert read_in_group(4) == [(p, n) for p in range(2) for n in (5, 6)]


def test_kcat_gets_an_error_for_a_record_that_is_too_large(
    cluster: Server, librdkafka: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    librdkafka.admin(cluster.bootstrap).create_topic(topic, configs={"max.message.bytes": "1000"})
    command = ["kcat", "-b", cluster.bootstrap, *QUICK, "-P", "-t", topic]
    done = subprocess.run(command, input=b"x" * 5000, capture_output=True, timeout=240, check=False)
    assert "Message size too large" in done.stderr.decode()
    assert read(cluster, topic) == []
