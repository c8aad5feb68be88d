"""Runs a script of requests against one server, and records responses that can be compared between servers."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any

from faults.wait import until
from tests.support.raw import CLOSED, Raw
from tests.support.times import NOON_MS

__all__ = ["UNKNOWN_TOPIC_ID", "ZERO_ID", "Conversation", "Script"]

ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
# A well-formed topic id that no topic has.
UNKNOWN_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAEA"
WITH_UUID = re.compile(r"^(.*)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

_NEAR_MS = 3_600_000
"""Times of records differ from ``NOON_MS`` by less than an hour. Recordings contain the difference."""

# Settings that both servers have. Each server also has settings that the other lacks.
COMMON_CONFIGS = {
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


class Conversation:
    """A script's requests to one server. Names are the same on both servers. In ``notes``, placeholders replace the
    values that a server generates.
    """

    def __init__(self, raw: Raw, connect: Callable[[], Raw], stem: str, *, is_kafka: bool) -> None:
        self.raw = raw
        self.connect = connect
        self.stem = stem
        # Kafka may respond with a retriable error; the embedded broker must not.
        self.is_kafka = is_kafka
        self.ids: dict[str, str] = {}
        self.notes: list[tuple[str, Any]] = []

    def name(self, what: str) -> str:
        return f"{self.stem}.{what}"

    def topic(self, what: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic and wait until the server leads its partitions."""
        name = self.name(what)
        request = {
            "name": name,
            "numPartitions": partitions,
            "replicationFactor": 1,
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        created = self.raw.call("CreateTopics", 7, topics=[request], timeoutMs=10_000)["topics"][0]
        assert created["errorCode"] == 0, created
        self.ids[name] = created["topicId"]
        until(lambda: self.leads(name, partitions), f"{name} has leaders")
        return name

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for work that a server does after its response, such as the markers of a completed transaction."""
        until(condition, "the server has caught up with its answer", pause_s=0.01)

    def leads(self, topic: str, partitions: int) -> bool:
        """Return whether the server leads every partition. After a topic is created, this can take a moment."""
        requested = [{"partitionIndex": index, "timestamp": -1} for index in range(partitions)]
        answer = self.raw.call(
            "ListOffsets", 7, replicaId=-1, topics=[{"name": topic, "partitions": requested}]
        )
        return all(response["errorCode"] == 0 for response in answer["topics"][0]["partitions"])

    def produce(self, topic: str, *batches: bytes, partition: int = 0) -> None:
        for batch in batches:
            data = {"index": partition, "records": base64.b64encode(batch).decode()}
            requested = [{"name": topic, "partitionData": [data]}]
            answer = self.raw.call("Produce", 9, acks=-1, timeoutMs=10_000, topicData=requested)
            assert answer["responses"][0]["partitionResponses"][0]["errorCode"] == 0, answer

    def call(self, label: str, api: str, version: int, /, **fields: Any) -> Any:
        """Send a request, record the response under a label, and return the response unchanged."""
        answer = self.raw.call(api, version, **fields)
        self.notes.append((label, self.plain(answer)))
        return answer

    def call_apart(self, label: str, api: str, version: int, /, **fields: Any) -> Any:
        """Like ``call``, but on a new connection, for requests after which the server may close the connection."""
        connection = self.connect()
        try:
            answer = connection.call(api, version, **fields)
        finally:
            connection.close()
        self.notes.append((label, self.plain(answer)))
        return answer

    def comparable(self) -> list[tuple[str, Any]]:
        """Return the notes without the names and times that only this run uses."""
        return [(label, _without_stem(self.stem, noted)) for label, noted in self.notes]

    def plain(self, answer: Any) -> Any:
        """Replace the values that the server generated, so that the responses of two servers can be equal."""
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
        return not (key == "configs" and isinstance(item, dict) and item.get("name") not in COMMON_CONFIGS)

    @staticmethod
    def _ordered(key: str, items: list[Any]) -> list[Any]:
        # Kafka stores these in hash maps, so their order is arbitrary.
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
        placeholders = {
            "clusterId": "a cluster",
            "logDir": "a directory",
            "port": "a port",
            "sessionId": "a session",
            "totalBytes": "bytes",
            "usableBytes": "bytes",
        }
        if key in placeholders and value:
            return placeholders[key]
        if key.lower().endswith("errormessage"):
            # Error messages are for people, and differ: ours has a message in cases where Kafka has none.
            return "..."
        if key in ("producerId", "logAppendTimeMs") and value >= 0:
            return "a number"
        return value


def _without_stem(stem: str, noted: Any) -> Any:
    if isinstance(noted, str):
        return noted.replace(stem, "stem")
    if isinstance(noted, dict):
        return {name: _without_stem(stem, value) for name, value in noted.items()}
    if isinstance(noted, list | tuple):
        return [_without_stem(stem, value) for value in noted]
    if isinstance(noted, int) and abs(noted - NOON_MS) < _NEAR_MS:
        return f"noon + {noted - NOON_MS} ms"
    return noted


def batches(records: str | None) -> list[tuple[int, int, int]] | None:
    """Return base offset, leader epoch and record count of each complete batch. Kafka may append a part of another
    batch.
    """
    if records is None:
        return None
    data, headers, start = base64.b64decode(records), [], 0
    while start + 61 <= len(data):
        length = int.from_bytes(data[start + 8 : start + 12])
        if start + 12 + length > len(data):
            break
        header = (int.from_bytes(data[start : start + 8]), int.from_bytes(data[start + 12 : start + 16]))
        headers.append((*header, int.from_bytes(data[start + 57 : start + 61])))
        start += 12 + length
    return headers


Script = Callable[[Conversation, int], None]


def per_partition(indexes: Sequence[int], **fields: Any) -> list[dict[str, Any]]:
    return [{"partitionIndex": index, **fields} for index in indexes]
