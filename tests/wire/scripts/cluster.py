"""The cluster itself: its versions, its brokers, its directories."""

from __future__ import annotations

from tests.support.batches import batch
from tests.wire.scripts.talk import Conversation, Script

__all__ = ["CLUSTER"]


def api_versions(talk: Conversation, version: int) -> None:
    # The sets of APIs and features differ by design. Another test checks that our APIs are a subset of Kafka's.
    names = {"clientSoftwareName": "wire-test", "clientSoftwareVersion": "1.0"}
    answer = talk.raw.call("ApiVersions", version, **names)
    ranges = {api["apiKey"]: (api["minVersion"], api["maxVersion"]) for api in answer["apiKeys"]}
    talk.notes.append(("some that both have", {key: ranges[key] for key in (1, 3, 18)}))
    talk.notes.append(("the rest", (answer["errorCode"], answer.get("throttleTimeMs"))))
    if version >= 3:
        bad = talk.raw.call("ApiVersions", version, **{**names, "clientSoftwareName": "no spaces please"})
        talk.notes.append(("a name that is none", (bad["errorCode"], bad["apiKeys"])))


def describe_cluster(talk: Conversation, version: int) -> None:
    talk.call("plain", "DescribeCluster", version)
    talk.call("what one may do", "DescribeCluster", version, includeClusterAuthorizedOperations=True)
    if version >= 1:
        talk.call("the controllers, from a broker", "DescribeCluster", version, endpointType=2)
        talk.call("no known kind", "DescribeCluster", version, endpointType=7)


def log_dirs(talk: Conversation, version: int) -> None:
    topic = talk.topic("t", 2)
    talk.produce(topic, batch(), batch(2))

    def call(label: str, *partitions: int, name: str = topic) -> None:
        topics = [{"topic": name, "partitions": list(partitions)}]
        talk.call(label, "DescribeLogDirs", version, topics=topics)

    call("both", 0, 1)
    call("one that is there, one that is not", 0, 9)
    call("a topic that is not there", 0, name=talk.name("nowhere"))
    talk.call("none", "DescribeLogDirs", version, topics=[])


CLUSTER: dict[str, Script] = {
    "ApiVersions": api_versions,
    "DescribeCluster": describe_cluster,
    "DescribeLogDirs": log_dirs,
}
