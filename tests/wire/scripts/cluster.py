"""The cluster itself: its versions, its brokers, its directories."""

from __future__ import annotations

from tests.support.batches import batch
from tests.wire.scripts.talk import Script, Talk

__all__ = ["CLUSTER"]


def api_versions(talk: Talk, version: int) -> None:
    # Which APIs and features there are differs by design; that the APIs are within Kafka's is a test of its own.
    names = {"clientSoftwareName": "wire-test", "clientSoftwareVersion": "1.0"}
    answer = talk.raw.ask("ApiVersions", version, **names)
    ranges = {one["apiKey"]: (one["minVersion"], one["maxVersion"]) for one in answer["apiKeys"]}
    talk.notes.append(("some that both have", {key: ranges[key] for key in (1, 3, 18)}))
    talk.notes.append(("the rest", (answer["errorCode"], answer.get("throttleTimeMs"))))
    if version >= 3:
        bad = talk.raw.ask("ApiVersions", version, **{**names, "clientSoftwareName": "no spaces please"})
        talk.notes.append(("a name that is none", (bad["errorCode"], bad["apiKeys"])))


def describe_cluster(talk: Talk, version: int) -> None:
    talk.ask("plain", "DescribeCluster", version)
    talk.ask("what one may do", "DescribeCluster", version, includeClusterAuthorizedOperations=True)
    if version >= 1:
        talk.ask("the controllers, from a broker", "DescribeCluster", version, endpointType=2)
        talk.ask("no known kind", "DescribeCluster", version, endpointType=7)


def log_dirs(talk: Talk, version: int) -> None:
    topic = talk.topic("t", 2)
    talk.produce(topic, batch(), batch(2))

    def ask(label: str, *partitions: int, name: str = topic) -> None:
        asked = [{"topic": name, "partitions": list(partitions)}]
        talk.ask(label, "DescribeLogDirs", version, topics=asked)

    ask("both", 0, 1)
    ask("one that is there, one that is not", 0, 9)
    ask("a topic that is not there", 0, name=talk.name("nowhere"))
    talk.ask("none", "DescribeLogDirs", version, topics=[])


CLUSTER: dict[str, Script] = {
    "ApiVersions": api_versions,
    "DescribeCluster": describe_cluster,
    "DescribeLogDirs": log_dirs,
}
