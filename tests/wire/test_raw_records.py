"""Batches and fetches as bytes: what no well-behaved client sends, and what the answers must be."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.batches import batch, bent
from tests.support.java_driver import JavaDriver
from tests.support.raw import CLOSED, Raw, raw_connection
from tests.support.server import Server
from tests.support.waiting import until
from tests.wire.scripts.talk import NOWHERE, Talk, batches

Fresh = Callable[[str], str]


@pytest.fixture
def talk(raw: Raw, driver: JavaDriver, cluster: Server, fresh: Fresh) -> Talk:
    return Talk(raw, lambda: Raw(driver, cluster.port), fresh("raw"), is_kafka=cluster.name == "kafka")


def produced(talk: Talk, topic: str, data: bytes, version: int = 9) -> dict[str, Any]:
    """The one partition's part of the answer."""
    records = base64.b64encode(data).decode()
    asked = [{"name": topic, "partitionData": [{"index": 0, "records": records}]}]
    answer = talk.raw.ask("Produce", version, acks=-1, timeoutMs=10_000, topicData=asked)
    (partition,) = answer["responses"][0]["partitionResponses"]
    found: dict[str, Any] = partition
    return found


def outcome(talk: Talk, topic: str, data: bytes) -> tuple[int, int]:
    partition = produced(talk, topic, data)
    return partition["errorCode"], partition["baseOffset"]


LIES = {
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


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_that_lies_is_refused_and_the_next_one_gets_its_offset(talk: Talk, lie: str) -> None:
    data, expected = LIES[lie]
    topic = talk.topic("t")
    assert outcome(talk, topic, batch()) == (0, 0)
    assert outcome(talk, topic, data) == (expected, -1)
    assert outcome(talk, topic, batch()) == (0, 3)


def test_a_compacted_topic_refuses_a_record_without_a_key_and_says_which(talk: Talk) -> None:
    topic = talk.topic("t", cleanup_policy="compact")
    partition = produced(talk, topic, batch(3, key=None))
    assert (partition["errorCode"], partition["baseOffset"]) == (87, -1)
    assert [one["batchIndex"] for one in partition["recordErrors"]] == [0, 1, 2]
    assert outcome(talk, topic, batch()) == (0, 0)


def test_a_timestamp_too_far_ahead_is_named_record_by_record(talk: Talk) -> None:
    topic = talk.topic("t")
    now_ms = int(time.time() * 1000)
    # The first two are within the hour that is allowed, the third is a day ahead.
    partition = produced(talk, topic, batch(3, first_ms=now_ms, step_ms=43_200_000))
    assert (partition["errorCode"], partition["baseOffset"]) == (32, -1)
    assert [one["batchIndex"] for one in partition["recordErrors"]] == [1, 2]


def test_a_producer_without_acknowledgements_is_told_of_an_error_by_hanging_up(
    talk: Talk, driver: JavaDriver, cluster: Server
) -> None:
    topic = talk.topic("t")
    records = base64.b64encode(batch()).decode()
    with raw_connection(driver, cluster.port) as silent:
        for name in (topic, talk.name("nowhere")):
            data = [{"name": name, "partitionData": [{"index": 0, "records": records}]}]
            silent.send("Produce", 9, acks=0, timeoutMs=1000, topicData=data)
        assert silent.ask("Metadata", 1, topics=[]) == CLOSED
    until(lambda: ends(talk, topic) == 3, "the good one is there")


def ends(talk: Talk, topic: str) -> int:
    asked = [{"name": topic, "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]
    answer = talk.raw.ask("ListOffsets", 7, replicaId=-1, topics=asked)
    end: int = answer["topics"][0]["partitions"][0]["offset"]
    return end


def producer_id(talk: Talk) -> int:
    def ask() -> int:
        answer = talk.raw.ask("InitProducerId", 4, transactionalId=None, transactionTimeoutMs=60_000)
        return 0 if answer["errorCode"] else answer["producerId"] + 1

    return until(ask, "there is a producer id") - 1


def test_an_idempotent_producer_s_sequence_is_kept(talk: Talk) -> None:
    topic, who = talk.topic("t"), producer_id(talk)

    def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
        return outcome(talk, topic, batch(producer=(who, epoch, sequence)))

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
    assert ends(talk, topic) == 24


def test_a_sequence_goes_on_after_its_greatest_number(talk: Talk) -> None:
    topic, who = talk.topic("t"), producer_id(talk)
    # A producer that the log does not know may begin anywhere, for its state may have expired.
    assert outcome(talk, topic, batch(producer=(who, 0, 2**31 - 2))) == (0, 0)
    assert outcome(talk, topic, batch(producer=(who, 0, 1))) == (0, 3)
    assert outcome(talk, topic, batch(producer=(who, 0, 2**31 - 2))) == (0, 0)


def fetched(talk: Talk, version: int, *wanted: dict[str, Any], topic: str = "", **fields: Any) -> Any:
    place = {"topic": topic, "topicId": talk.ids.get(topic, NOWHERE)}
    parts = [{"partitionMaxBytes": 1 << 20, **one} for one in wanted]
    topics = [{**place, "partitions": parts}] if parts else []
    given = {"maxWaitMs": 100, "minBytes": 1, "maxBytes": 1 << 20, "topics": topics, **fields}
    return talk.raw.ask("Fetch", version, **given)


def shown(answer: Any) -> dict[int, tuple[int, list[tuple[int, int, int]] | None]]:
    """Per partition, its error and its batches."""
    return {
        one["partitionIndex"]: (one["errorCode"], batches(one["records"]))
        for topic in answer["responses"]
        for one in topic["partitions"]
    }


def test_a_session_tells_only_what_has_changed(talk: Talk) -> None:
    topic = talk.topic("t", 3)
    talk.produce(topic, batch(), partition=0)
    first = fetched(talk, 12, *({"partition": index} for index in range(3)), topic=topic, sessionEpoch=0)
    session = first["sessionId"]

    def go_on(epoch: int, *wanted: dict[str, Any], **fields: Any) -> Any:
        return fetched(talk, 12, *wanted, topic=topic, sessionId=session, sessionEpoch=epoch, **fields)

    assert session != 0
    assert shown(first) == {0: (0, [(0, 0, 3)]), 1: (0, []), 2: (0, [])}
    assert shown(go_on(1, {"partition": 0, "fetchOffset": 3})) == {}
    talk.produce(topic, batch(2), partition=2)
    assert shown(go_on(2)) == {2: (0, [(0, 0, 2)])}
    # It comes again until the client moves on.
    assert shown(go_on(3)) == {2: (0, [(0, 0, 2)])}
    forgotten = [{"topic": topic, "partitions": [2]}]
    assert shown(go_on(4, forgottenTopicsData=forgotten)) == {}
    talk.produce(topic, batch(1), partition=2)
    talk.produce(topic, batch(1), partition=1)
    assert shown(go_on(5)) == {1: (0, [(0, 0, 1)])}
    assert go_on(9)["errorCode"] == 71
    assert shown(go_on(6, {"partition": 1, "fetchOffset": 1})) == {}
    assert shown(go_on(7, {"partition": 1, "fetchOffset": 77})) == {1: (1, [])}
    assert go_on(-1, {"partition": 1})["sessionId"] == 0
    assert go_on(8)["errorCode"] == 70


def test_a_session_nobody_has_is_refused(talk: Talk) -> None:
    topic = talk.topic("t")
    observed = [
        fetched(talk, 12, sessionId=12_345, sessionEpoch=1)["errorCode"],
        fetched(talk, 12, sessionId=0, sessionEpoch=4)["errorCode"],
    ]
    by_name = fetched(talk, 12, {"partition": 0}, topic=topic, sessionEpoch=0)["sessionId"]
    observed.append(fetched(talk, 13, sessionId=by_name, sessionEpoch=1)["errorCode"])
    assert observed == [70, 70, 106]


def test_limits_hold_but_never_keep_the_first_batch_back(talk: Talk) -> None:
    topic = talk.topic("t", 2)
    size = len(batch())
    talk.produce(topic, batch(), batch(), batch(), partition=0)
    talk.produce(topic, batch(), partition=1)
    both = ({"partition": 0}, {"partition": 1})

    def counts(*wanted: dict[str, Any], **fields: Any) -> dict[int, int]:
        found = shown(fetched(talk, 12, *wanted, topic=topic, **fields))
        return {index: len(kept or []) for index, (_, kept) in found.items()}

    assert counts(*both) == {0: 3, 1: 1}
    assert counts(*both, maxBytes=1) == {0: 1, 1: 0}
    assert counts(*both, maxBytes=2 * size) == {0: 2, 1: 0}
    assert counts({"partition": 0, "partitionMaxBytes": 2 * size}, both[1]) == {0: 2, 1: 1}
    assert counts({"partition": 0, "partitionMaxBytes": 0}) == {0: 1}
    assert counts(both[1], both[0], maxBytes=1) == {1: 1, 0: 0}


def test_a_fetch_waits_for_enough_bytes_but_not_longer_than_it_was_told(talk: Talk) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch())
    began = time.monotonic()
    answer = fetched(talk, 12, {"partition": 0}, topic=topic, minBytes=1 << 20, maxWaitMs=400)
    took_s = time.monotonic() - began
    assert shown(answer) == {0: (0, [(0, 0, 3)])}
    assert took_s >= 0.4


def test_a_fetch_with_an_error_does_not_wait(talk: Talk) -> None:
    topic = talk.topic("t", 2)
    began = time.monotonic()
    wanted = ({"partition": 0}, {"partition": 1, "fetchOffset": 9})
    answer = fetched(talk, 12, *wanted, topic=topic, maxWaitMs=15_000)
    assert shown(answer) == {0: (0, []), 1: (1, [])}
    assert time.monotonic() - began < 7


def test_a_later_leader_epoch_than_ours_is_refused(talk: Talk) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch())
    observed = [
        shown(fetched(talk, 12, {"partition": 0, "currentLeaderEpoch": epoch}, topic=topic))[0][0]
        for epoch in (-1, 0, 5)
    ]
    assert observed == [0, 0, 75]


def test_the_id_of_a_deleted_topic_leads_nowhere_even_when_its_name_is_back(talk: Talk) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch())
    old = talk.ids[topic]
    talk.raw.ask("DeleteTopics", 5, topicNames=[topic], timeoutMs=10_000)
    talk.topic("t")
    assert talk.ids[topic] != old
    records = base64.b64encode(batch()).decode()
    partitions = [{"index": 0, "records": records}]
    data = [{"topicId": old, "partitionData": partitions}]

    def write() -> int:
        answer = talk.raw.ask("Produce", 13, acks=-1, timeoutMs=10_000, topicData=data)
        code: int = answer["responses"][0]["partitionResponses"][0]["errorCode"]
        return code

    by_id = [{"topicId": old, "partitions": [{"partition": 0, "partitionMaxBytes": 1 << 20}]}]
    read = talk.raw.ask("Fetch", 16, maxWaitMs=100, minBytes=1, maxBytes=1 << 20, topics=by_id)
    asked = talk.raw.ask("Metadata", 12, topics=[{"name": None, "topicId": old}])
    assert write() == 100
    assert shown(read) == {0: (100, [])}
    assert asked["topics"][0]["errorCode"] == 100
    assert ends(talk, topic) == 0
