"""Every version of every API answers as Apache Kafka's does, so that clients nobody thought of work as well."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest

from tests.plugins.kafka_half import KafkaHalf
from tests.support.java_driver import JavaDriver
from tests.support.raw import CLOSED, Raw, raw_connection
from tests.support.server import Server
from tests.wire.scripts import SCRIPTS
from tests.wire.scripts.talk import Talk

# Kafka 4.3's stable versions of the APIs that the embedded broker has.
VERSIONS = {
    "Produce": (3, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "ApiVersions": (0, 4),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "TxnOffsetCommit": (0, 5),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "DescribeLogDirs": (1, 5),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "OffsetDelete": (0, 0),
    "DescribeCluster": (0, 2),
    "DescribeTopicPartitions": (0, 0),
    "DescribeProducers": (0, 0),
}


def talk_with(server: Server, driver: JavaDriver, api: str, version: int) -> list[tuple[str, Any]]:
    with raw_connection(driver, server.port) as raw:
        stem = f"{api.lower()}-{version}-{uuid.uuid4().hex[:6]}"
        talk = Talk(raw, lambda: Raw(driver, server.port), stem, is_kafka=server.name == "kafka")
        SCRIPTS[api](talk, version)
        return talk.comparable()


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api, (low, high) in VERSIONS.items() for version in range(low, high + 1)],
)
def test_every_version_answers_as_kafka_s_does(
    headrace_server: Server,
    kafka_server: Server,
    kafka_half: KafkaHalf,
    driver: JavaDriver,
    api: str,
    version: int,
) -> None:
    ours = talk_with(headrace_server, driver, api, version)

    def check(theirs: list[tuple[str, Any]]) -> None:
        assert len(theirs) > 1
        assert all(answer != CLOSED for _, answer in theirs)
        for (label, kafka), (_, headrace) in zip(theirs, ours, strict=True):
            assert (label, headrace) == (label, kafka)

    kafka_half.compare(lambda: talk_with(kafka_server, driver, api, version), check)


def test_the_scripts_cover_every_api_that_the_broker_has(headrace_server: Server, driver: JavaDriver) -> None:
    with raw_connection(driver, headrace_server.port) as raw:
        numbers = {number: name for name, (number, _, _) in raw.apis.items()}
        answer = raw.ask("ApiVersions", 0)
    offered = {numbers[one["apiKey"]]: (one["minVersion"], one["maxVersion"]) for one in answer["apiKeys"]}
    # Old librdkafka stops compressing if Produce does not begin at 0, so both servers say it does.
    assert offered.pop("Produce") == (0, 13)
    assert offered == {api: versions for api, versions in VERSIONS.items() if api != "Produce"}


@pytest.mark.kafka_half
def test_the_versions_listed_here_are_kafka_s_own(kafka_server: Server, driver: JavaDriver) -> None:
    with raw_connection(driver, kafka_server.port) as raw:
        numbers = {number: name for name, (number, _, _) in raw.apis.items()}
        answer = raw.ask("ApiVersions", 0)
    offered = {numbers[one["apiKey"]]: (one["minVersion"], one["maxVersion"]) for one in answer["apiKeys"]}
    assert {api: offered[api] for api in VERSIONS} == {**VERSIONS, "Produce": (0, 13)}


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest(
    cluster: Server, driver: JavaDriver, version: int
) -> None:
    with raw_connection(driver, cluster.port) as raw:
        frame = struct.pack(">hhih", 18, version, 7, -1) + b"\0"
        answer = raw.ask_bytes(frame, "ApiVersions", 0)
        assert answer == {"errorCode": 35, "apiKeys": [{"apiKey": 18, "minVersion": 0, "maxVersion": 4}]}
        # A client goes on with what it was told, on the same connection.
        assert raw.ask("ApiVersions", 4, clientSoftwareName="a", clientSoftwareVersion="1")["errorCode"] == 0


BODY = b"\0" * 40
FRAMES = {
    "a version beyond the last": struct.pack(">hhih", 3, 99, 7, -1) + BODY,
    "a version before the first": struct.pack(">hhih", 2, 0, 7, -1) + BODY,
    "a negative version": struct.pack(">hhih", 3, -1, 7, -1) + BODY,
    "a produce of a version that is offered but not spoken": struct.pack(">hhih", 0, 2, 7, -1) + BODY,
    "an API that there is not": struct.pack(">hhih", 999, 0, 7, -1) + BODY,
    "a negative API": struct.pack(">hhih", -1, 0, 7, -1) + BODY,
    "an API between brokers": struct.pack(">hhih", 7, 0, 7, -1) + BODY,
    "a client id longer than the frame": struct.pack(">hhih", 3, 1, 7, 500) + b"a",
    "a body that ends too soon": struct.pack(">hhih", 3, 1, 7, -1),
    "more elements than bytes": struct.pack(">hhihi", 3, 1, 7, -1, 2**31 - 1),
    "a header that ends too soon": struct.pack(">hh", 3, 1),
}


@pytest.mark.parametrize("what", FRAMES)
def test_what_cannot_be_understood_closes_the_connection_and_harms_nobody_else(
    cluster: Server, driver: JavaDriver, raw: Raw, what: str
) -> None:
    with raw_connection(driver, cluster.port) as bad:
        assert bad.ask_bytes(FRAMES[what], "Metadata", 0) == CLOSED
    assert raw.ask("Metadata", 1, topics=[])["topics"] == []


def test_bytes_after_a_request_are_ignored(cluster: Server, raw: Raw) -> None:
    frame = struct.pack(">hhihi", 3, 1, 7, -1, 0) + b"extra"
    assert raw.ask_bytes(frame, "Metadata", 1)["topics"] == []


def test_a_tagged_field_from_the_future_is_ignored(cluster: Server, raw: Raw) -> None:
    # ApiVersions 3: name "a", version "1", then one tagged field, number 77, of two bytes.
    body = b"\x02a\x02" + b"1" + b"\x01\x4d\x02zz"
    frame = struct.pack(">hhih", 18, 3, 7, -1) + b"\0" + body
    assert raw.ask_bytes(frame, "ApiVersions", 3)["errorCode"] == 0


def test_answers_come_in_the_order_of_the_requests(cluster: Server, driver: JavaDriver) -> None:
    """A slow request at the head holds the ones behind it, as clients that pipeline rely on."""
    with raw_connection(driver, cluster.port) as raw:
        sent = [
            raw.send("Fetch", 11, maxWaitMs=300, minBytes=1, sessionEpoch=-1, topics=[]),
            raw.send("Metadata", 1, topics=[]),
            raw.send("ApiVersions", 0),
        ]
        answered = [raw.receive(*asked)[0] for asked in (("Fetch", 11), ("Metadata", 1), ("ApiVersions", 0))]
    assert answered == sent
