"""Topics, their partitions and their settings."""

from __future__ import annotations

from typing import Any

from tests.support.waiting import until
from tests.wire.scripts.talk import NOWHERE, ZERO_ID, Script, Talk

__all__ = ["TOPICS"]


def metadata(talk: Talk, version: int) -> None:
    topic = talk.topic("t", 2)

    def ask(label: str, *names: str, **fields: Any) -> None:
        topics = [{"name": name} for name in names]
        talk.ask(label, "Metadata", version, topics=topics, **fields)

    ask("one topic", topic)
    ask("an impossible name", "../x")
    if version >= 1:
        ask("no topics")
    if version >= 4:
        ask("a topic that is not there", talk.name("nowhere"), allowAutoTopicCreation=False)
        ask("two of them", topic, talk.name("nowhere"), allowAutoTopicCreation=False)
    if version >= 8:
        ask("what one may do", topic, includeTopicAuthorizedOperations=True)
    if version >= 12:
        by_id = [{"name": None, "topicId": talk.ids[topic]}, {"name": None, "topicId": NOWHERE}]
        talk.ask("by id", "Metadata", version, topics=by_id)
    # A topic that is asked for is made. Kafka does so a moment after its first answer, which does not have it yet.
    made = [{"name": talk.name("made")}]
    until(lambda: talk.raw.ask("Metadata", version, topics=made)["topics"][0]["errorCode"] == 0, "it is made")
    if version >= 10:
        talk.ids[talk.name("made")] = talk.raw.ask("Metadata", version, topics=made)["topics"][0]["topicId"]
    ask("a topic that is made by asking", talk.name("made"))


def create_topics(talk: Talk, version: int) -> None:
    def make(label: str, *topics: dict[str, Any], **fields: Any) -> None:
        wanted = [{"numPartitions": 1, "replicationFactor": 1, **topic} for topic in topics]
        for made in talk.raw.ask("CreateTopics", version, topics=wanted, timeoutMs=10_000, **fields)[
            "topics"
        ]:
            name = made["name"]
            if made.get("topicId", ZERO_ID) != ZERO_ID:
                talk.ids[name] = made["topicId"]
            talk.notes.append((f"{label}: {name}", talk.plain(made)))

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


def delete_topics(talk: Talk, version: int) -> None:
    first, second = talk.topic("first"), talk.topic("second")

    def delete(label: str, *names: str) -> None:
        asked = [{"name": name} for name in names]
        given = {"topics": asked} if version >= 6 else {"topicNames": list(names)}
        talk.ask(label, "DeleteTopics", version, timeoutMs=10_000, **given)

    delete("one that is there, one that is not", first, talk.name("nowhere"))
    delete("an impossible name", "../x")
    if version >= 6:
        by_id = [{"name": None, "topicId": talk.ids[second]}, {"name": None, "topicId": NOWHERE}]
        talk.ask("by id", "DeleteTopics", version, timeoutMs=10_000, topics=by_id)


def create_partitions(talk: Talk, version: int) -> None:
    topic = talk.topic("t", 2)

    def grow(label: str, *topics: dict[str, Any], **fields: Any) -> None:
        asked = [{"assignments": None, **one} for one in topics]
        talk.ask(label, "CreatePartitions", version, timeoutMs=10_000, topics=asked, **fields)

    grow("validate only", {"name": topic, "count": 5}, validateOnly=True)
    grow("more", {"name": topic, "count": 3})
    grow("the same", {"name": topic, "count": 3})
    grow("fewer", {"name": topic, "count": 1})
    grow("by hand", {"name": topic, "count": 4, "assignments": [{"brokerIds": [1]}]})
    grow("by hand, too few", {"name": topic, "count": 6, "assignments": [{"brokerIds": [1]}]})
    grow("of a topic that is not there", {"name": talk.name("nowhere"), "count": 2})


def describe_partitions(talk: Talk, version: int) -> None:
    one, two = talk.topic("one", 3), talk.topic("two", 2)

    def ask(label: str, *names: str, **fields: Any) -> None:
        topics = [{"name": name} for name in names]
        talk.ask(label, "DescribeTopicPartitions", version, topics=topics, **fields)

    ask("both", one, two)
    ask("in any order, and twice", two, one, two)
    for limit in (1, 3, 4, 5):
        ask(f"at most {limit}", one, two, responsePartitionLimit=limit)
    ask("from inside the first", one, two, cursor={"topicName": one, "partitionIndex": 2})
    ask("from the second", one, two, cursor={"topicName": two, "partitionIndex": 0})
    ask("from beyond the first", one, cursor={"topicName": one, "partitionIndex": 9})
    ask("from a topic that is not asked for", two, cursor={"topicName": one, "partitionIndex": 0})
    ask("one that is not there", one, talk.name("other"), two, responsePartitionLimit=4)
    ask("an impossible name", "../x")


TOPIC, BROKER = 2, 4


def describe_configs(talk: Talk, version: int) -> None:
    topic = talk.topic("t", retention_ms="1234", compression_type="lz4")

    def ask(label: str, kind: int, name: str, *keys: str, **fields: Any) -> None:
        resource = {"resourceType": kind, "resourceName": name, "configurationKeys": list(keys) or None}
        talk.ask(label, "DescribeConfigs", version, resources=[resource], **fields)

    ask("some of a topic", TOPIC, topic, "retention.ms", "segment.bytes", "zap")
    ask("all of a topic", TOPIC, topic)
    ask("with its synonyms", TOPIC, topic, "retention.ms", "compression.type", includeSynonyms=True)
    ask("of a topic that is not there", TOPIC, talk.name("nowhere"))
    ask("of an impossible name", TOPIC, "../x")
    ask("of another broker", BROKER, "7")
    ask("of a broker without a number", BROKER, "seven")
    ask("of no known kind", 99, topic)


def alter_configs(talk: Talk, version: int) -> None:
    topic = talk.topic("t", retention_ms="1234", segment_bytes="2000000")

    def alter(label: str, settings: dict[str, str | None], name: str = topic, **fields: Any) -> None:
        configs = [{"name": key, "value": value} for key, value in settings.items()]
        resource = {"resourceType": TOPIC, "resourceName": name, "configs": configs}
        talk.ask(label, "AlterConfigs", version, resources=[resource], **fields)
        asked = {"resourceType": TOPIC, "resourceName": topic, "configurationKeys": None}
        talk.ask(f"after: {label}", "DescribeConfigs", 4, resources=[asked])

    alter("validate only", {"retention.ms": "7"}, validateOnly=True)
    alter("one setting in place of two", {"retention.ms": "77"})
    alter("no number", {"retention.ms": "x"})
    alter("no value", {"retention.ms": None})
    alter("no such setting", {"zap": "1"})
    alter("no such topic", {"retention.ms": "1"}, talk.name("nowhere"))
    alter("none at all", {})


SET, DELETE, APPEND, SUBTRACT = range(4)


def incremental(talk: Talk, version: int) -> None:
    topic = talk.topic("t", retention_ms="1234")

    def alter(label: str, *changes: tuple[int, str, str | None], name: str = topic, **fields: Any) -> None:
        configs = [{"configOperation": op, "name": key, "value": value} for op, key, value in changes]
        resource = {"resourceType": TOPIC, "resourceName": name, "configs": configs}
        talk.ask(label, "IncrementalAlterConfigs", version, resources=[resource], **fields)
        asked = {"resourceType": TOPIC, "resourceName": topic, "configurationKeys": None}
        talk.ask(f"after: {label}", "DescribeConfigs", 4, resources=[asked])

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
