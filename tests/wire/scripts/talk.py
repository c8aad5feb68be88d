"""One side of a scripted conversation, and the notes that make two conversations comparable."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.raw import CLOSED, Raw
from tests.support.waiting import until

__all__ = ["NOWHERE", "ZERO_ID", "Script", "Talk"]

ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
# A well-formed topic id that no topic has.
NOWHERE = "AAAAAAAAAAAAAAAAAAAAEA"
WITH_UUID = re.compile(r"^(.*)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

# Settings that both servers have; each has further ones of its own.
USUAL = {
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
}


class Talk:
    """Names are the same on both servers; what a server makes up itself is replaced in the notes by what it is."""

    def __init__(self, raw: Raw, connect: Callable[[], Raw], stem: str, *, is_kafka: bool) -> None:
        self.raw = raw
        self.connect = connect
        self.stem = stem
        # Kafka may answer that it is to be asked again; our broker may not.
        self.is_kafka = is_kafka
        self.ids: dict[str, str] = {}
        self.notes: list[tuple[str, Any]] = []

    def name(self, what: str) -> str:
        return f"{self.stem}.{what}"

    def topic(self, what: str, partitions: int = 1, **configs: str) -> str:
        """Make a topic and wait until the server leads its partitions."""
        name = self.name(what)
        wanted = {
            "name": name,
            "numPartitions": partitions,
            "replicationFactor": 1,
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        made = self.raw.ask("CreateTopics", 7, topics=[wanted], timeoutMs=10_000)["topics"][0]
        assert made["errorCode"] == 0, made
        self.ids[name] = made["topicId"]
        until(lambda: self.leads(name, partitions), f"{name} has leaders")
        return name

    def wait(self, condition: Callable[[], bool]) -> None:
        """For what a server does a moment after it has answered, such as the marks of a transaction that is decided."""
        until(condition, "the server has caught up with its answer", pause_s=0.01)

    def leads(self, topic: str, partitions: int) -> bool:
        """Whether the server answers for every partition, which it may do a moment after making the topic."""
        asked = [{"partitionIndex": index, "timestamp": -1} for index in range(partitions)]
        answer = self.raw.ask("ListOffsets", 7, replicaId=-1, topics=[{"name": topic, "partitions": asked}])
        return all(one["errorCode"] == 0 for one in answer["topics"][0]["partitions"])

    def produce(self, topic: str, *batches: bytes, partition: int = 0) -> None:
        for batch in batches:
            data = {"index": partition, "records": base64.b64encode(batch).decode()}
            asked = [{"name": topic, "partitionData": [data]}]
            answer = self.raw.ask("Produce", 9, acks=-1, timeoutMs=10_000, topicData=asked)
            assert answer["responses"][0]["partitionResponses"][0]["errorCode"] == 0, answer

    def ask(self, label: str, api: str, version: int, /, **fields: Any) -> Any:
        """Ask, note the answer under a label, and give the answer back as it is."""
        answer = self.raw.ask(api, version, **fields)
        self.notes.append((label, self.plain(answer)))
        return answer

    def ask_apart(self, label: str, api: str, version: int, /, **fields: Any) -> Any:
        """The same on a connection of its own, for what the server may answer by hanging up."""
        connection = self.connect()
        try:
            answer = connection.ask(api, version, **fields)
        finally:
            connection.close()
        self.notes.append((label, self.plain(answer)))
        return answer

    def comparable(self) -> list[tuple[str, Any]]:
        """The notes without the names that only this conversation uses."""
        return [(label, _without(self.stem, noted)) for label, noted in self.notes]

    def plain(self, answer: Any) -> Any:
        """An answer with the server's own inventions replaced, so that two servers' answers can be equal."""
        if answer == CLOSED:
            return CLOSED
        return self._plain("", answer)

    def _plain(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: self._plain(inner, item) for inner, item in value.items()}
        if isinstance(value, list):
            return self._ordered(key, [self._plain(key, item) for item in value if self._kept(key, item)])
        return self._scalar(key, value)

    @staticmethod
    def _kept(key: str, item: Any) -> bool:
        return not (key == "configs" and isinstance(item, dict) and item.get("name") not in USUAL)

    @staticmethod
    def _ordered(key: str, items: list[Any]) -> list[Any]:
        # Kafka keeps these in hash maps, so their order says nothing.
        unordered = {"configs", "results", "groups", "topics", "responses", "partitions", "members"}
        unordered |= {"transactionStates", "resultsByPartition", "unknownStateFilters"}
        return sorted(items, key=str) if key in unordered else items

    def _scalar(self, key: str, value: Any) -> Any:
        if key in ("topicId", "topicID") and value != ZERO_ID:
            return next((f"id of {name}" for name, known in self.ids.items() if known == value), value)
        if key in ("memberId", "leader") and value:
            return WITH_UUID.sub(r"\1-uuid", value)
        if key == "records":
            return batches(value)
        words = {
            "clusterId": "a cluster",
            "logDir": "a directory",
            "port": "a port",
            "sessionId": "a session",
            "totalBytes": "bytes",
            "usableBytes": "bytes",
        }
        if key in words and value:
            return words[key]
        if key.lower().endswith("errormessage"):
            # Texts are for people; each server has its own words, and ours has some where Kafka has none.
            return "..."
        if key in ("producerId", "logAppendTimeMs") and value >= 0:
            return "a number"
        return value


def _without(stem: str, noted: Any) -> Any:
    if isinstance(noted, str):
        return noted.replace(stem, "stem")
    if isinstance(noted, dict):
        return {name: _without(stem, value) for name, value in noted.items()}
    if isinstance(noted, list | tuple):
        return [_without(stem, value) for value in noted]
    return noted


def batches(records: str | None) -> list[tuple[int, int, int]] | None:
    """Base offset, leader epoch and record count of each whole batch; Kafka may add a part of a further one."""
    if records is None:
        return None
    data, found, at = base64.b64decode(records), [], 0
    while at + 61 <= len(data):
        length = int.from_bytes(data[at + 8 : at + 12])
        if at + 12 + length > len(data):
            break
        place = (int.from_bytes(data[at : at + 8]), int.from_bytes(data[at + 12 : at + 16]))
        found.append((*place, int.from_bytes(data[at + 57 : at + 61])))
        at += 12 + length
    return found


Script = Callable[[Talk, int], None]


def per_partition(indexes: Sequence[int], **fields: Any) -> list[dict[str, Any]]:
    return [{"partitionIndex": index, **fields} for index in indexes]
