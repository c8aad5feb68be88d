"""Producing, fetching, finding offsets, deleting records."""

from __future__ import annotations

import base64
from typing import Any

from faults.wait import until
from tests.support.batches import batch
from tests.support.times import NOON_MS
from tests.wire.scripts.talk import UNKNOWN_TOPIC_ID, Conversation, Script, per_partition
from tests.wire.scripts.transactions import take_over

__all__ = ["RECORDS"]


def produce(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", 2)
    stamped = talk.topic("stamped", message_timestamp_type="LogAppendTime")

    def send(label: str, data: bytes, name: str = topic, index: int = 0, acks: int = -1) -> None:
        records = base64.b64encode(data).decode()
        topic_fields = {"name": name, "topicId": talk.ids.get(name, UNKNOWN_TOPIC_ID)}
        topic_data = [{**topic_fields, "partitionData": [{"index": index, "records": records}]}]
        talk.call(label, "Produce", version, acks=acks, timeoutMs=10_000, topicData=topic_data)

    send("three", batch())
    send("three more, acknowledged by the leader", batch(), acks=1)
    send("one in the other partition", batch(1), index=1)
    send("packed with lz4", batch(codec="lz4"))
    send("packed with zstd, which came with version 7", batch(codec="zstd"))
    send("stamped by the server", batch(), stamped)
    send("to a topic that is not there", batch(), talk.name("nowhere"))
    send("to a partition that is not there", batch(), index=2)
    send("too large", batch(1, value=b"x" * 1_100_000))
    send("asking for two acknowledgements", batch(), acks=2)


def fetch(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", 2)
    talk.produce(topic, batch(), batch(codec="gzip"), batch(2))

    def read(label: str, *wanted: dict[str, Any], name: str = topic, **fields: Any) -> Any:
        topic_fields = {"topic": name, "topicId": talk.ids.get(name, UNKNOWN_TOPIC_ID)}
        topics = [
            {
                **topic_fields,
                "partitions": [{"partitionMaxBytes": 1 << 20, **partition} for partition in wanted],
            }
        ]
        request = {"maxWaitMs": 200, "minBytes": 1, "maxBytes": 1 << 20, "topics": topics, **fields}
        return talk.call(label, "Fetch", version, **request)

    read("all", {"partition": 0}, {"partition": 1})
    read("from inside a batch", {"partition": 0, "fetchOffset": 4})
    read("at the end", {"partition": 0, "fetchOffset": 8})
    read("beyond the end", {"partition": 0, "fetchOffset": 9})
    read("a partition that is not there", {"partition": 5})
    read("a topic that is not there", {"partition": 0}, name=talk.name("nowhere"))
    read("only what is committed", {"partition": 0}, isolationLevel=1)
    read("hardly any bytes", {"partition": 0}, {"partition": 1}, maxBytes=1)
    if version >= 7:
        session = read("begin a session", {"partition": 0}, {"partition": 1}, sessionEpoch=0)["sessionId"]
        read("go on", {"partition": 0, "fetchOffset": 8}, sessionId=session, sessionEpoch=1)
        talk.produce(topic, batch(1), partition=1)
        read("what is new", sessionId=session, sessionEpoch=2, topics=[])
        read("out of turn", sessionId=session, sessionEpoch=7, topics=[])
        read("end it", {"partition": 0}, sessionId=session, sessionEpoch=-1)
        read("after its end", sessionId=session, sessionEpoch=3, topics=[])


def list_offsets(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", 2)
    talk.produce(topic, batch(5, step_ms=1000))

    def find(label: str, at: int, index: int = 0, name: str = topic) -> None:
        topics = [{"name": name, "partitions": per_partition([index], timestamp=at)}]
        talk.call(label, "ListOffsets", version, replicaId=-1, timeoutMs=5000, topics=topics)

    find("latest", -1)
    find("earliest", -2)
    find("greatest timestamp, from version 7", -3)
    find("earliest local, from version 8", -4)
    find("latest tiered, from version 9", -5)
    find("earliest pending upload, from version 11", -6)
    find("no such special time", -7)
    find("by time", NOON_MS + 1500)
    find("after all", NOON_MS + 5000)
    find("in an empty partition", NOON_MS, 1)
    find("greatest timestamp of an empty partition", -3, 1)
    find("end of an empty partition", -1, 1)
    find("in a partition that is not there", -1, 2)
    find("in a topic that is not there", -1, name=talk.name("nowhere"))


def epochs(talk: Conversation, version: int) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch())

    def find(label: str, epoch: int, current: int = -1, index: int = 0) -> None:
        partition = {"partition": index, "leaderEpoch": epoch, "currentLeaderEpoch": current}
        topics = [{"topic": topic, "partitions": [partition]}]
        talk.call(label, "OffsetForLeaderEpoch", version, replicaId=-1, topics=topics)

    find("the first", 0)
    find("one that has not been", 5)
    find("none", -1)
    find("knowing the leader", 0, 0)
    find("knowing a later leader", 0, 5)
    find("of a partition that is not there", 0, index=3)


def delete_records(talk: Conversation, version: int) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch(), batch())

    def cut(label: str, offset: int, index: int = 0, name: str = topic) -> None:
        topics = [{"name": name, "partitions": per_partition([index], offset=offset)}]
        talk.call(label, "DeleteRecords", version, timeoutMs=5000, topics=topics)

    cut("inside a batch", 4)
    cut("below the first", 2)
    cut("beyond the end", 7)
    cut("everything", -1)
    cut("in a partition that is not there", 0, 1)
    cut("in a topic that is not there", 0, name=talk.name("nowhere"))


def producer_id(talk: Conversation, version: int) -> None:
    # Kafka's first responses are errors, because it still fetches a block of ids from its controller.
    fields = {"transactionalId": None, "transactionTimeoutMs": 60_000}
    until(lambda: talk.raw.call("InitProducerId", version, **fields)["errorCode"] == 0, "there are ids")
    for label in ("one", "another"):
        talk.call(label, "InitProducerId", version, **fields)
    take_over(talk, version)


def producers(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", 2)
    fields = {"transactionalId": None, "transactionTimeoutMs": 60_000}
    until(lambda: talk.raw.call("InitProducerId", 5, **fields)["errorCode"] == 0, "there are ids")
    number = talk.raw.call("InitProducerId", 5, **fields)["producerId"]
    talk.produce(topic, batch(), batch(producer=(number, 0, 0)), batch(producer=(number, 0, 3)))

    def describe(label: str, *indexes: int, name: str = topic) -> None:
        topics = [{"name": name, "partitionIndexes": list(indexes)}]
        talk.call(label, "DescribeProducers", version, topics=topics)

    describe("one that wrote twice", 0)
    describe("none", 1)
    describe("of a partition that is not there", 7)
    describe("of a topic that is not there", 0, name=talk.name("nowhere"))


RECORDS: dict[str, Script] = {
    "Produce": produce,
    "Fetch": fetch,
    "ListOffsets": list_offsets,
    "OffsetForLeaderEpoch": epochs,
    "DeleteRecords": delete_records,
    "InitProducerId": producer_id,
    "DescribeProducers": producers,
}
