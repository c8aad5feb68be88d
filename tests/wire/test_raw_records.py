"""Batches and fetches as bytes: requests that no well-behaved client sends, and their responses."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest

from faults.clients.java_driver import JavaDriver
from faults.servers.server import Server
from faults.wait import until
from tests.support.batches import batch, bent
from tests.support.raw import CLOSED, Raw, raw_connection
from tests.wire.scripts.talk import UNKNOWN_TOPIC_ID, Conversation, batches

Fresh = Callable[[str], str]


@pytest.fixture
def talk(raw: Raw, driver: JavaDriver, cluster: Server, fresh: Fresh) -> Conversation:
    return Conversation(
        raw, lambda: Raw(driver, cluster.port), fresh("raw"), is_kafka=cluster.name == "kafka"
    )


def produce_batch(talk: Conversation, topic: str, data: bytes, version: int = 9) -> dict[str, Any]:
    """Produce a batch; return the response for its partition."""
    records = base64.b64encode(data).decode()
    topic_data = [{"name": topic, "partitionData": [{"index": 0, "records": records}]}]
    answer = talk.raw.call("Produce", version, acks=-1, timeoutMs=10_000, topicData=topic_data)
    (partition,) = answer["responses"][0]["partitionResponses"]
    found: dict[str, Any] = partition
    return found


def outcome(talk: Conversation, topic: str, data: bytes) -> tuple[int, int]:
    partition = produce_batch(talk, topic, data)
    return partition["errorCode"], partition["baseOffset"]


INVALID_BATCHES = {
    "nothing at all": (b"", 87),
    "two batches": (batch() + batch(), 87),
    "an end that is missing": (batch()[:-3], 87),
    "a wrong checksum": (bent(batch(), good_crc=False), 2),
    "an older format": (bent(batch(), magic=1), 87),
    "more records than there are": (bent(batch(), count=5), 87),
    "fewer records than there are": (bent(batch(), count=2), 87),
    "no records": (bent(batch(), count=0), 87),
    "a last offset that is too high": (bent(batch(), last_offset_delta=5), 87),
    "offsets that do not begin at 0": (bent(batch(), base_offset=99), 87),
    "a control batch": (bent(batch(), attributes=32), 87),
    "a producer without a sequence": (batch(producer=(7, 0, -1)), 87),
}


@pytest.mark.parametrize("lie", INVALID_BATCHES)
def test_a_batch_with_a_false_header_is_refused_and_the_next_one_gets_its_offset(
    talk: Conversation, lie: str
) -> None:
    data, expected = INVALID_BATCHES[lie]
    topic = talk.topic("t")
    assert outcome(talk, topic, batch()) == (0, 0)
    assert outcome(talk, topic, data) == (expected, -1)
    assert outcome(talk, topic, batch()) == (0, 3)


def test_a_compacted_topic_refuses_a_record_without_a_key_and_names_it(talk: Conversation) -> None:
    topic = talk.topic("t", cleanup_policy="compact")
    partition = produce_batch(talk, topic, batch(3, key=None))
    assert (partition["errorCode"], partition["baseOffset"]) == (87, -1)
    assert [error["batchIndex"] for error in partition["recordErrors"]] == [0, 1, 2]
    assert outcome(talk, topic, batch()) == (0, 0)


def test_a_response_names_each_record_whose_timestamp_is_too_far_ahead(talk: Conversation) -> None:
    topic = talk.topic("t")
    now_ms = int(time.time() * 1000)
    # The first two timestamps are within the allowed hour, the third is a day ahead.
    partition = produce_batch(talk, topic, batch(3, first_ms=now_ms, step_ms=43_200_000))
    assert (partition["errorCode"], partition["baseOffset"]) == (32, -1)
    assert [error["batchIndex"] for error in partition["recordErrors"]] == [1, 2]


def test_an_error_closes_the_connection_of_a_producer_without_acknowledgements(
    talk: Conversation, driver: JavaDriver, cluster: Server
) -> None:
    topic = talk.topic("t")
    records = base64.b64encode(batch()).decode()
    with raw_connection(driver, cluster.port) as silent:
        for name in (topic, talk.name("nowhere")):
            data = [{"name": name, "partitionData": [{"index": 0, "records": records}]}]
            silent.send("Produce", 9, acks=0, timeoutMs=1000, topicData=data)
        assert silent.call("Metadata", 1, topics=[]) == CLOSED
    until(lambda: end_offset(talk, topic) == 3, "the good one is there")


def end_offset(talk: Conversation, topic: str) -> int:
    topics = [{"name": topic, "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]
    answer = talk.raw.call("ListOffsets", 7, replicaId=-1, topics=topics)
    end: int = answer["topics"][0]["partitions"][0]["offset"]
    return end


def producer_id(talk: Conversation) -> int:
    def call() -> int:
        answer = talk.raw.call("InitProducerId", 4, transactionalId=None, transactionTimeoutMs=60_000)
        return 0 if answer["errorCode"] else answer["producerId"] + 1

    return until(call, "there is a producer id") - 1


def test_the_sequence_of_an_idempotent_producer_is_checked(talk: Conversation) -> None:
    topic, own_id = talk.topic("t"), producer_id(talk)

    def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
        return outcome(talk, topic, batch(producer=(own_id, epoch, sequence)))

    observed = {
        "first": send(0),
        "the same again": send(0),
        "next": send(3),
        "the first once more": send(0),
        "overlapping": send(1),
        "with a gap": send(9),
        "five more": [send(sequence) for sequence in (6, 9, 12, 15, 18)],
        "one of the last five": send(9),
        "one before the last five": send(3),
        "a new epoch not from 0": send(5, 1),
        "a new epoch": send(0, 1),
        "the old epoch": send(21),
    }
    assert observed == {
        "first": (0, 0),
        "the same again": (0, 0),
        "next": (0, 3),
        "the first once more": (0, 0),
        "overlapping": (45, -1),
        "with a gap": (45, -1),
        "five more": [(0, 6), (0, 9), (0, 12), (0, 15), (0, 18)],
        "one of the last five": (0, 9),
        "one before the last five": (45, -1),
        "a new epoch not from 0": (45, -1),
        "a new epoch": (0, 21),
        "the old epoch": (47, -1),
    }
    assert end_offset(talk, topic) == 24


def test_a_sequence_number_wraps_around_after_its_maximum(talk: Conversation) -> None:
    topic, own_id = talk.topic("t"), producer_id(talk)
    # An unknown producer may start with any sequence, because its state may have expired.
    assert outcome(talk, topic, batch(producer=(own_id, 0, 2**31 - 2))) == (0, 0)
    assert outcome(talk, topic, batch(producer=(own_id, 0, 1))) == (0, 3)
    assert outcome(talk, topic, batch(producer=(own_id, 0, 2**31 - 2))) == (0, 0)


def fetch(talk: Conversation, version: int, *wanted: dict[str, Any], topic: str = "", **fields: Any) -> Any:
    topic_fields = {"topic": topic, "topicId": talk.ids.get(topic, UNKNOWN_TOPIC_ID)}
    parts = [{"partitionMaxBytes": 1 << 20, **partition} for partition in wanted]
    topics = [{**topic_fields, "partitions": parts}] if parts else []
    request = {"maxWaitMs": 100, "minBytes": 1, "maxBytes": 1 << 20, "topics": topics, **fields}
    return talk.raw.call("Fetch", version, **request)


def partition_results(answer: Any) -> dict[int, tuple[int, list[tuple[int, int, int]] | None]]:
    """Return the error and the batches of each partition."""
    return {
        partition["partitionIndex"]: (partition["errorCode"], batches(partition["records"]))
        for topic in answer["responses"]
        for partition in topic["partitions"]
    }


def test_a_session_returns_only_changed_partitions(talk: Conversation) -> None:
    topic = talk.topic("t", 3)
    talk.produce(topic, batch(), partition=0)
    first = fetch(talk, 12, *({"partition": index} for index in range(3)), topic=topic, sessionEpoch=0)
    session = first["sessionId"]

    def fetch_in_session(epoch: int, *wanted: dict[str, Any], **fields: Any) -> Any:
        return fetch(talk, 12, *wanted, topic=topic, sessionId=session, sessionEpoch=epoch, **fields)

    assert session != 0
    assert partition_results(first) == {0: (0, [(0, 0, 3)]), 1: (0, []), 2: (0, [])}
    assert partition_results(fetch_in_session(1, {"partition": 0, "fetchOffset": 3})) == {}
    talk.produce(topic, batch(2), partition=2)
    assert partition_results(fetch_in_session(2)) == {2: (0, [(0, 0, 2)])}
    # The server sends it again until the client fetches a later offset.
    assert partition_results(fetch_in_session(3)) == {2: (0, [(0, 0, 2)])}
    forgotten = [{"topic": topic, "partitions": [2]}]
    assert partition_results(fetch_in_session(4, forgottenTopicsData=forgotten)) == {}
    talk.produce(topic, batch(1), partition=2)
    talk.produce(topic, batch(1), partition=1)
    assert partition_results(fetch_in_session(5)) == {1: (0, [(0, 0, 1)])}
    assert fetch_in_session(9)["errorCode"] == 71
    assert partition_results(fetch_in_session(6, {"partition": 1, "fetchOffset": 1})) == {}
    assert partition_results(fetch_in_session(7, {"partition": 1, "fetchOffset": 77})) == {1: (1, [])}
    assert fetch_in_session(-1, {"partition": 1})["sessionId"] == 0
    assert fetch_in_session(8)["errorCode"] == 70


def test_an_unknown_session_is_refused(talk: Conversation) -> None:
    topic = talk.topic("t")
    observed = [
        fetch(talk, 12, sessionId=12_345, sessionEpoch=1)["errorCode"],
        fetch(talk, 12, sessionId=0, sessionEpoch=4)["errorCode"],
    ]
    by_name = fetch(talk, 12, {"partition": 0}, topic=topic, sessionEpoch=0)["sessionId"]
    observed.append(fetch(talk, 13, sessionId=by_name, sessionEpoch=1)["errorCode"])
    assert observed == [70, 70, 106]


def test_fetch_limits_apply_except_to_the_first_batch(talk: Conversation) -> None:
    topic = talk.topic("t", 2)
    size = len(batch())
    talk.produce(topic, batch(), batch(), batch(), partition=0)
    talk.produce(topic, batch(), partition=1)
    both = ({"partition": 0}, {"partition": 1})

    def counts(*wanted: dict[str, Any], **fields: Any) -> dict[int, int]:
        found = partition_results(fetch(talk, 12, *wanted, topic=topic, **fields))
        return {index: len(kept or []) for index, (_, kept) in found.items()}

    assert counts(*both) == {0: 3, 1: 1}
    assert counts(*both, maxBytes=1) == {0: 1, 1: 0}
    assert counts(*both, maxBytes=2 * size) == {0: 2, 1: 0}
    assert counts({"partition": 0, "partitionMaxBytes": 2 * size}, both[1]) == {0: 2, 1: 1}
    assert counts({"partition": 0, "partitionMaxBytes": 0}) == {0: 1}
    assert counts(both[1], both[0], maxBytes=1) == {1: 1, 0: 0}


def test_a_fetch_waits_for_enough_bytes_but_no_longer_than_its_limit(talk: Conversation) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch())
    began = time.monotonic()
    answer = fetch(talk, 12, {"partition": 0}, topic=topic, minBytes=1 << 20, maxWaitMs=400)
    took_s = time.monotonic() - began
    assert partition_results(answer) == {0: (0, [(0, 0, 3)])}
    assert took_s >= 0.4


def test_a_fetch_with_an_error_does_not_wait(talk: Conversation) -> None:
    topic = talk.topic("t", 2)
    began = time.monotonic()
    wanted = ({"partition": 0}, {"partition": 1, "fetchOffset": 9})
    answer = fetch(talk, 12, *wanted, topic=topic, maxWaitMs=15_000)
    assert partition_results(answer) == {0: (0, []), 1: (1, [])}
    assert time.monotonic() - began < 7


def test_a_later_leader_epoch_than_ours_is_refused(talk: Conversation) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch())
    observed = [
        partition_results(fetch(talk, 12, {"partition": 0, "currentLeaderEpoch": epoch}, topic=topic))[0][0]
        for epoch in (-1, 0, 5)
    ]
    assert observed == [0, 0, 75]


def test_the_id_of_a_deleted_topic_stays_unknown_when_its_name_is_created_again(talk: Conversation) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch())
    old = talk.ids[topic]
    talk.raw.call("DeleteTopics", 5, topicNames=[topic], timeoutMs=10_000)
    talk.topic("t")
    assert talk.ids[topic] != old
    records = base64.b64encode(batch()).decode()
    partitions = [{"index": 0, "records": records}]
    data = [{"topicId": old, "partitionData": partitions}]

    def write() -> int:
        answer = talk.raw.call("Produce", 13, acks=-1, timeoutMs=10_000, topicData=data)
        code: int = answer["responses"][0]["partitionResponses"][0]["errorCode"]
        return code

    by_id = [{"topicId": old, "partitions": [{"partition": 0, "partitionMaxBytes": 1 << 20}]}]
    read = talk.raw.call("Fetch", 16, maxWaitMs=100, minBytes=1, maxBytes=1 << 20, topics=by_id)
    metadata = talk.raw.call("Metadata", 12, topics=[{"name": None, "topicId": old}])
    assert write() == 100
    assert partition_results(read) == {0: (100, [])}
    assert metadata["topics"][0]["errorCode"] == 100
    assert end_offset(talk, topic) == 0
