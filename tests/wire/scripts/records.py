"""Producing, fetching, looking up offsets, deleting records."""

from __future__ import annotations

import base64
from typing import Any

from tests.support.batches import batch
from tests.support.times import NOON_MS
from tests.support.waiting import until
from tests.wire.scripts.talk import NOWHERE, Script, Talk, per_partition
from tests.wire.scripts.transactions import take_over

__all__ = ["RECORDS"]


def produce(talk: Talk, version: int) -> None:
    topic = talk.topic("t", 2)
    stamped = talk.topic("stamped", message_timestamp_type="LogAppendTime")

    def send(label: str, data: bytes, name: str = topic, index: int = 0, acks: int = -1) -> None:
        records = base64.b64encode(data).decode()
        place = {"name": name, "topicId": talk.ids.get(name, NOWHERE)}
        asked = [{**place, "partitionData": [{"index": index, "records": records}]}]
        talk.ask(label, "Produce", version, acks=acks, timeoutMs=10_000, topicData=asked)

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


def fetch(talk: Talk, version: int) -> None:
    topic = talk.topic("t", 2)
    talk.produce(topic, batch(), batch(codec="gzip"), batch(2))

    def read(label: str, *wanted: dict[str, Any], name: str = topic, **fields: Any) -> Any:
        place = {"topic": name, "topicId": talk.ids.get(name, NOWHERE)}
        asked = [{**place, "partitions": [{"partitionMaxBytes": 1 << 20, **one} for one in wanted]}]
        given = {"maxWaitMs": 200, "minBytes": 1, "maxBytes": 1 << 20, "topics": asked, **fields}
        return talk.ask(label, "Fetch", version, **given)

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


def list_offsets(talk: Talk, version: int) -> None:
    topic = talk.topic("t", 2)
    talk.produce(topic, batch(5, step_ms=1000))

    def find(label: str, at: int, index: int = 0, name: str = topic) -> None:
        asked = [{"name": name, "partitions": per_partition([index], timestamp=at)}]
        talk.ask(label, "ListOffsets", version, replicaId=-1, timeoutMs=5000, topics=asked)

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


def epochs(talk: Talk, version: int) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch())

    def find(label: str, epoch: int, current: int = -1, index: int = 0) -> None:
        asked = {"partition": index, "leaderEpoch": epoch, "currentLeaderEpoch": current}
        topics = [{"topic": topic, "partitions": [asked]}]
        talk.ask(label, "OffsetForLeaderEpoch", version, replicaId=-1, topics=topics)

    find("the first", 0)
    find("one that has not been", 5)
    find("none", -1)
    find("knowing the leader", 0, 0)
    find("knowing a later leader", 0, 5)
    find("of a partition that is not there", 0, index=3)


def delete_records(talk: Talk, version: int) -> None:
    topic = talk.topic("t")
    talk.produce(topic, batch(), batch())

    def cut(label: str, offset: int, index: int = 0, name: str = topic) -> None:
        topics = [{"name": name, "partitions": per_partition([index], offset=offset)}]
        talk.ask(label, "DeleteRecords", version, timeoutMs=5000, topics=topics)

    cut("inside a batch", 4)
    cut("below the first", 2)
    cut("beyond the end", 7)
    cut("everything", -1)
    cut("in a partition that is not there", 0, 1)
    cut("in a topic that is not there", 0, name=talk.name("nowhere"))


def producer_id(talk: Talk, version: int) -> None:
    # Kafka's first answers of all say that it is still fetching a block of ids from its controller.
    fields = {"transactionalId": None, "transactionTimeoutMs": 60_000}
    until(lambda: talk.raw.ask("InitProducerId", version, **fields)["errorCode"] == 0, "there are ids")
    for label in ("one", "another"):
        talk.ask(label, "InitProducerId", version, **fields)
    take_over(talk, version)


def producers(talk: Talk, version: int) -> None:
    topic = talk.topic("t", 2)
    fields = {"transactionalId": None, "transactionTimeoutMs": 60_000}
    until(lambda: talk.raw.ask("InitProducerId", 5, **fields)["errorCode"] == 0, "there are ids")
    number = talk.raw.ask("InitProducerId", 5, **fields)["producerId"]
    talk.produce(topic, batch(), batch(producer=(number, 0, 0)), batch(producer=(number, 0, 3)))

    def describe(label: str, *indexes: int, name: str = topic) -> None:
        asked = [{"name": name, "partitionIndexes": list(indexes)}]
        talk.ask(label, "DescribeProducers", version, topics=asked)

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
