"""Topics, their partitions and their settings."""

from __future__ import annotations

from typing import Any

from faults.wait import until
from tests.wire.scripts.talk import UNKNOWN_TOPIC_ID, ZERO_ID, Conversation, Script

__all__ = ["TOPICS"]


def metadata(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", 2)

    def call(label: str, *names: str, **fields: Any) -> None:
        topics = [{"name": name} for name in names]
        talk.call(label, "Metadata", version, topics=topics, **fields)

    call("one topic", topic)
    call("an impossible name", "../x")
    if version >= 1:
        call("no topics")
    if version >= 4:
        call("a topic that is not there", talk.name("nowhere"), allowAutoTopicCreation=False)
        call("two of them", topic, talk.name("nowhere"), allowAutoTopicCreation=False)
    if version >= 8:
        call("what one may do", topic, includeTopicAuthorizedOperations=True)
    if version >= 12:
        by_id = [{"name": None, "topicId": talk.ids[topic]}, {"name": None, "topicId": UNKNOWN_TOPIC_ID}]
        talk.call("by id", "Metadata", version, topics=by_id)
    # A requested topic is created. Kafka creates it after its first response, which does not have it yet.
    auto = [{"name": talk.name("made")}]
    until(
        lambda: talk.raw.call("Metadata", version, topics=auto)["topics"][0]["errorCode"] == 0, "it is made"
    )
    if version >= 10:
        talk.ids[talk.name("made")] = talk.raw.call("Metadata", version, topics=auto)["topics"][0]["topicId"]
    call("a topic that is made by asking", talk.name("made"))


def create_topics(talk: Conversation, version: int) -> None:
    def make(label: str, *topics: dict[str, Any], **fields: Any) -> None:
        wanted = [{"numPartitions": 1, "replicationFactor": 1, **topic} for topic in topics]
        for created in talk.raw.call("CreateTopics", version, topics=wanted, timeoutMs=10_000, **fields)[
            "topics"
        ]:
            name = created["name"]
            if created.get("topicId", ZERO_ID) != ZERO_ID:
                talk.ids[name] = created["topicId"]
            talk.notes.append((f"{label}: {name}", talk.plain(created)))

    topic = talk.name("t")
    assigned = [{"partitionIndex": index, "brokerIds": [1]} for index in (0, 1)]
    setting = {"name": "retention.ms", "value": "1000"}
    make("validate only", {"name": topic}, validateOnly=True)
    make("two partitions", {"name": topic, "numPartitions": 2, "configs": [setting]})
    make("again", {"name": topic})
    make("one good, one bad", {"name": talk.name("good")}, {"name": "a/b"})
    make("twice in one request", {"name": talk.name("twice")}, {"name": talk.name("twice")})
    make("no partitions", {"name": talk.name("none"), "numPartitions": 0})
    make("two copies on one broker", {"name": talk.name("two"), "replicationFactor": 2})
    make("a setting that is no number", {"name": talk.name("bad"), "configs": [{**setting, "value": "x"}]})
    make("a setting that there is not", {"name": talk.name("bad"), "configs": [{**setting, "name": "zap"}]})
    manual = {
        "name": talk.name("manual"),
        "numPartitions": -1,
        "replicationFactor": -1,
        "assignments": assigned,
    }
    make("assigned by hand", manual)
    if version >= 4:
        make("by default", {"name": talk.name("default"), "numPartitions": -1, "replicationFactor": -1})


def delete_topics(talk: Conversation, version: int) -> None:
    first, second = talk.topic("first"), talk.topic("second")

    def delete(label: str, *names: str) -> None:
        topics = [{"name": name} for name in names]
        request = {"topics": topics} if version >= 6 else {"topicNames": list(names)}
        talk.call(label, "DeleteTopics", version, timeoutMs=10_000, **request)

    delete("one that is there, one that is not", first, talk.name("nowhere"))
    delete("an impossible name", "../x")
    if version >= 6:
        by_id = [{"name": None, "topicId": talk.ids[second]}, {"name": None, "topicId": UNKNOWN_TOPIC_ID}]
        talk.call("by id", "DeleteTopics", version, timeoutMs=10_000, topics=by_id)


def create_partitions(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", 2)

    def grow(label: str, *topics: dict[str, Any], **fields: Any) -> None:
        requested = [{"assignments": None, **change} for change in topics]
        talk.call(label, "CreatePartitions", version, timeoutMs=10_000, topics=requested, **fields)

    grow("validate only", {"name": topic, "count": 5}, validateOnly=True)
    grow("more", {"name": topic, "count": 3})
    grow("the same", {"name": topic, "count": 3})
    grow("fewer", {"name": topic, "count": 1})
    grow("by hand", {"name": topic, "count": 4, "assignments": [{"brokerIds": [1]}]})
    grow("by hand, too few", {"name": topic, "count": 6, "assignments": [{"brokerIds": [1]}]})
    grow("of a topic that is not there", {"name": talk.name("nowhere"), "count": 2})


def describe_partitions(talk: Conversation, version: int) -> None:
    first, second = talk.topic("one", 3), talk.topic("two", 2)

    def call(label: str, *names: str, **fields: Any) -> None:
        topics = [{"name": name} for name in names]
        talk.call(label, "DescribeTopicPartitions", version, topics=topics, **fields)

    call("both", first, second)
    call("in any order, and twice", second, first, second)
    for limit in (1, 3, 4, 5):
        call(f"at most {limit}", first, second, responsePartitionLimit=limit)
    call("from inside the first", first, second, cursor={"topicName": first, "partitionIndex": 2})
    call("from the second", first, second, cursor={"topicName": second, "partitionIndex": 0})
    call("from beyond the first", first, cursor={"topicName": first, "partitionIndex": 9})
    call("from a topic that is not asked for", second, cursor={"topicName": first, "partitionIndex": 0})
    call("one that is not there", first, talk.name("other"), second, responsePartitionLimit=4)
    call("an impossible name", "../x")


TOPIC, BROKER = 2, 4


def describe_configs(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", retention_ms="1234", compression_type="lz4")

    def call(label: str, kind: int, name: str, *keys: str, **fields: Any) -> None:
        resource = {"resourceType": kind, "resourceName": name, "configurationKeys": list(keys) or None}
        talk.call(label, "DescribeConfigs", version, resources=[resource], **fields)

    call("some of a topic", TOPIC, topic, "retention.ms", "segment.bytes", "zap")
    call("all of a topic", TOPIC, topic)
    call("with its synonyms", TOPIC, topic, "retention.ms", "compression.type", includeSynonyms=True)
    call("of a topic that is not there", TOPIC, talk.name("nowhere"))
    call("of an impossible name", TOPIC, "../x")
    call("of another broker", BROKER, "7")
    call("of a broker without a number", BROKER, "seven")
    call("of no known kind", 99, topic)


def alter_configs(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", retention_ms="1234", segment_bytes="2000000")

    def alter(label: str, settings: dict[str, str | None], name: str = topic, **fields: Any) -> None:
        configs = [{"name": key, "value": value} for key, value in settings.items()]
        resource = {"resourceType": TOPIC, "resourceName": name, "configs": configs}
        talk.call(label, "AlterConfigs", version, resources=[resource], **fields)
        described = {"resourceType": TOPIC, "resourceName": topic, "configurationKeys": None}
        talk.call(f"after: {label}", "DescribeConfigs", 4, resources=[described])

    alter("validate only", {"retention.ms": "7"}, validateOnly=True)
    alter("one setting in place of two", {"retention.ms": "77"})
    alter("no number", {"retention.ms": "x"})
    alter("no value", {"retention.ms": None})
    alter("no such setting", {"zap": "1"})
    alter("no such topic", {"retention.ms": "1"}, talk.name("nowhere"))
    alter("none at all", {})


SET, DELETE, APPEND, SUBTRACT = range(4)


def incremental(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", retention_ms="1234")

    def alter(label: str, *changes: tuple[int, str, str | None], name: str = topic, **fields: Any) -> None:
        configs = [{"configOperation": op, "name": key, "value": value} for op, key, value in changes]
        resource = {"resourceType": TOPIC, "resourceName": name, "configs": configs}
        talk.call(label, "IncrementalAlterConfigs", version, resources=[resource], **fields)
        described = {"resourceType": TOPIC, "resourceName": topic, "configurationKeys": None}
        talk.call(f"after: {label}", "DescribeConfigs", 4, resources=[described])

    alter("set", (SET, "retention.ms", "5"), (SET, "segment.bytes", "2000000"))
    alter("validate only", (SET, "retention.ms", "6"), validateOnly=True)
    alter("delete", (DELETE, "retention.ms", None))
    alter("delete what is not set", (DELETE, "segment.ms", None))
    alter("append", (APPEND, "cleanup.policy", "compact"))
    alter("append again", (APPEND, "cleanup.policy", "compact"))
    alter("subtract", (SUBTRACT, "cleanup.policy", "delete"))
    alter("append to what is no list", (APPEND, "retention.ms", "5"))
    alter("subtract from what is no list", (SUBTRACT, "retention.ms", "5"))
    alter("set to nothing", (SET, "retention.ms", None))
    alter("one good, one bad", (SET, "retention.ms", "8"), (SET, "segment.bytes", "x"))
    alter("one key twice", (SET, "retention.ms", "8"), (SET, "retention.ms", "9"))
    alter("no such setting", (SET, "zap", "1"))
    alter("no such topic", (SET, "retention.ms", "1"), name=talk.name("nowhere"))
    alter("with blanks around it", (SET, "retention.ms", " 9 "))


TOPICS: dict[str, Script] = {
    "Metadata": metadata,
    "CreateTopics": create_topics,
    "DeleteTopics": delete_topics,
    "CreatePartitions": create_partitions,
    "DescribeTopicPartitions": describe_partitions,
    "DescribeConfigs": describe_configs,
    "AlterConfigs": alter_configs,
    "IncrementalAlterConfigs": incremental,
}
