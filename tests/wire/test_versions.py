"""Every version of every API responds as Apache Kafka does, so that unknown clients work as well."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest

from faults.clients.java_driver import JavaDriver
from faults.servers.server import Server
from tests.plugins.kafka_half import KafkaHalf
from tests.plugins.kafka_recordings import as_json
from tests.support.raw import CLOSED, Raw, raw_connection
from tests.wire.scripts import SCRIPTS
from tests.wire.scripts.talk import Conversation

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


def run_script(server: Server, driver: JavaDriver, api: str, version: int) -> list[tuple[str, Any]]:
    with raw_connection(driver, server.port) as raw:
        stem = f"{api.lower()}-{version}-{uuid.uuid4().hex[:6]}"
        talk = Conversation(raw, lambda: Raw(driver, server.port), stem, is_kafka=server.name == "kafka")
        SCRIPTS[api](talk, version)
        return talk.comparable()


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api, (low, high) in VERSIONS.items() for version in range(low, high + 1)],
)
def test_every_version_responds_as_kafka_does(
    headrace_server: Server, kafka_half: KafkaHalf, driver: JavaDriver, api: str, version: int
) -> None:
    ours = as_json(run_script(headrace_server, driver, api, version))

    def check(theirs: list[tuple[str, Any]]) -> None:
        assert len(theirs) > 1
        assert all(answer != CLOSED for _, answer in theirs)
        for (label, kafka), (_, headrace) in zip(theirs, ours, strict=True):
            assert (label, headrace) == (label, kafka)

    kafka_half.compare(lambda kafka: run_script(kafka, driver, api, version), check)


def test_the_scripts_cover_every_api_that_the_broker_has(headrace_server: Server, driver: JavaDriver) -> None:
    with raw_connection(driver, headrace_server.port) as raw:
        numbers = {number: name for name, (number, _, _) in raw.apis.items()}
        answer = raw.call("ApiVersions", 0)
    offered = {
        numbers[entry["apiKey"]]: (entry["minVersion"], entry["maxVersion"]) for entry in answer["apiKeys"]
    }
    # Old librdkafka does not compress unless Produce starts at version 0, so both servers advertise version 0.
    assert offered.pop("Produce") == (0, 13)
    assert offered == {api: versions for api, versions in VERSIONS.items() if api != "Produce"}


@pytest.mark.kafka_half
def test_the_listed_versions_are_those_of_apache_kafka(kafka_server: Server, driver: JavaDriver) -> None:
    with raw_connection(driver, kafka_server.port) as raw:
        numbers = {number: name for name, (number, _, _) in raw.apis.items()}
        answer = raw.call("ApiVersions", 0)
    offered = {
        numbers[entry["apiKey"]]: (entry["minVersion"], entry["maxVersion"]) for entry in answer["apiKeys"]
    }
    assert {api: offered[api] for api in VERSIONS} == {**VERSIONS, "Produce": (0, 13)}


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_unknown_version_of_api_versions_gets_a_response_in_version_0(
    cluster: Server, driver: JavaDriver, version: int
) -> None:
    with raw_connection(driver, cluster.port) as raw:
        frame = struct.pack(">hhih", 18, version, 7, -1) + b"\0"
        answer = raw.ask_bytes(frame, "ApiVersions", 0)
        assert answer == {"errorCode": 35, "apiKeys": [{"apiKey": 18, "minVersion": 0, "maxVersion": 4}]}
        # The client continues with the advertised versions on the same connection.
        assert raw.call("ApiVersions", 4, clientSoftwareName="a", clientSoftwareVersion="1")["errorCode"] == 0


BODY = b"\0" * 40
MALFORMED_REQUESTS = {
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


@pytest.mark.parametrize("what", MALFORMED_REQUESTS)
def test_a_malformed_request_closes_only_its_own_connection(
    cluster: Server, driver: JavaDriver, raw: Raw, what: str
) -> None:
    with raw_connection(driver, cluster.port) as bad:
        assert bad.ask_bytes(MALFORMED_REQUESTS[what], "Metadata", 0) == CLOSED
    assert raw.call("Metadata", 1, topics=[])["topics"] == []


def test_bytes_after_a_request_are_ignored(cluster: Server, raw: Raw) -> None:
    frame = struct.pack(">hhihi", 3, 1, 7, -1, 0) + b"extra"
    assert raw.ask_bytes(frame, "Metadata", 1)["topics"] == []


def test_a_tagged_field_from_the_future_is_ignored(cluster: Server, raw: Raw) -> None:
    # ApiVersions 3: name "a", version "1", then one tagged field, number 77, of two bytes.
    body = b"\x02a\x02" + b"1" + b"\x01\x4d\x02zz"
    frame = struct.pack(">hhih", 18, 3, 7, -1) + b"\0" + body
    assert raw.ask_bytes(frame, "ApiVersions", 3)["errorCode"] == 0


def test_responses_are_in_the_order_of_the_requests(cluster: Server, driver: JavaDriver) -> None:
    """A slow request delays the responses to later requests of its connection: pipelining clients rely on the order."""
    with raw_connection(driver, cluster.port) as raw:
        sent = [
            raw.send("Fetch", 11, maxWaitMs=300, minBytes=1, sessionEpoch=-1, topics=[]),
            raw.send("Metadata", 1, topics=[]),
            raw.send("ApiVersions", 0),
        ]
        answered = [
            raw.receive(*request)[0] for request in (("Fetch", 11), ("Metadata", 1), ("ApiVersions", 0))
        ]
    assert answered == sent
