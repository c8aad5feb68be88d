"""The same random script against both servers: any requests in any order get the same responses.

The seed is in the test's name, and the script depends on nothing else; a step that differs is named with its number.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

import pytest

from faults.clients.java_driver import JavaDriver
from faults.servers.server import Server
from tests.plugins.kafka_half import KafkaHalf
from tests.support.batches import CODECS, batch, bent
from tests.support.times import NOON_MS
from tests.wire.scripts.alike import check_same_responses
from tests.wire.scripts.groups import coordinator
from tests.wire.scripts.talk import Conversation, per_partition

STEPS = 60
# If a topic has keyed records, Kafka still adds partitions, but the embedded broker requires an option for that. So two
# topics grow and get no keys, and one gets keys and never grows.
GROWING, KEYED = "ab", "c"


class Script:
    """Random requests about a few topics and groups. All choices depend on the seed only, not on responses."""

    def __init__(self, talk: Conversation, seed: int) -> None:
        self.talk = talk
        self.random = random.Random(seed)
        self.sequences: dict[tuple[str, int], int] = {}
        self.steps: list[tuple[Callable[[], None], int]] = [
            (self.produce, 10),
            (self.produce_a_lie, 2),
            (self.fetch, 8),
            (self.list_offsets, 5),
            (self.delete_records, 2),
            (self.epochs, 1),
            (self.commit, 3),
            (self.fetch_offsets, 3),
            (self.set_a_limit, 1),
            (self.add_partitions, 1),
            (self.delete_and_make_again, 1),
            (self.delete_group, 1),
            (self.describe, 2),
        ]

    def run(self) -> None:
        coordinator(self.talk)
        for what in GROWING + KEYED:
            self.talk.topic(what, 2)
        steps, weights = zip(*self.steps, strict=True)
        for step in self.random.choices(steps, weights, k=STEPS):
            step()

    def call(self, api: str, version: int, /, **fields: Any) -> Any:
        return self.talk.call(f"step {len(self.talk.notes)}: {api} {fields}"[:300], api, version, **fields)

    def topic(self, among: str = "aabcc") -> str:
        return self.talk.name(self.random.choice(among))

    def key(self, topic: str) -> bytes | None:
        if topic != self.talk.name(KEYED):
            return None
        return self.random.choice([None, b"", b"key", self.random.randbytes(200)])

    def partition(self) -> int:
        return self.random.choice([0, 0, 0, 1, 1, 2, 7])

    def version(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def send(self, data: bytes, topic: str, partition: int) -> None:
        records = base64.b64encode(data).decode()
        requested = [{"name": topic, "partitionData": [{"index": partition, "records": records}]}]
        # Use names only: ids differ by design, and another test covers them.
        acks = self.random.choice([1, -1])
        self.call("Produce", self.version(3, 12), acks=acks, timeoutMs=10_000, topicData=requested)

    def produce(self) -> None:
        first_ms = NOON_MS + self.random.randrange(100_000)
        topic = self.topic()
        data = batch(
            self.random.randint(1, 6),
            codec=self.random.choice(CODECS[:4]),
            first_ms=first_ms,
            step_ms=self.random.randrange(-500, 2000),
            value=self.random.randbytes(self.random.choice([0, 10, 500, 3000])),
            key=self.key(topic),
        )
        self.send(data, topic, self.partition())

    def produce_a_lie(self) -> None:
        good = batch(self.random.randint(1, 4))
        lies = [{"count": 9}, {"last_offset_delta": 7}, {"good_crc": False}, {"base_offset": 3}]
        self.send(bent(good, **self.random.choice(lies)), self.topic(), self.partition())  # type: ignore[arg-type]

    def fetch(self) -> None:
        wanted = [
            {
                "partition": index,
                "fetchOffset": self.random.choice([0, 0, 1, 3, 5, 8, 13, 21, 40]),
                "partitionMaxBytes": self.random.choice([0, 100, 1000, 1 << 20]),
            }
            for index in sorted({self.partition() for _ in range(2)})
        ]
        self.call(
            "Fetch",
            self.version(4, 12),
            maxWaitMs=0,
            minBytes=0,
            maxBytes=self.random.choice([1, 500, 1 << 20]),
            isolationLevel=self.random.choice([0, 1]),
            sessionEpoch=-1,
            topics=[{"topic": self.topic(), "partitions": wanted}],
        )

    def list_offsets(self) -> None:
        times = [-1, -2, -3, -4, NOON_MS, NOON_MS + self.random.randrange(110_000)]
        requested = per_partition([self.partition()], timestamp=self.random.choice(times))
        topics = [{"name": self.topic(), "partitions": requested}]
        self.call("ListOffsets", self.version(1, 11), replicaId=-1, timeoutMs=5000, topics=topics)

    def delete_records(self) -> None:
        requested = per_partition([self.partition()], offset=self.random.choice([-1, 0, 1, 2, 4, 8, 30]))
        topics = [{"name": self.topic(), "partitions": requested}]
        self.call("DeleteRecords", self.version(0, 2), timeoutMs=5000, topics=topics)

    def epochs(self) -> None:
        requested = {"partition": self.partition(), "leaderEpoch": self.random.choice([0, 1])}
        topics = [{"topic": self.topic(), "partitions": [requested]}]
        self.call("OffsetForLeaderEpoch", self.version(2, 4), replicaId=-1, topics=topics)

    def group(self) -> str:
        return self.talk.name(self.random.choice(["g", "h"]))

    def commit(self) -> None:
        offset = self.random.randrange(50)
        requested = per_partition(
            [self.partition()], committedOffset=offset, committedMetadata=f"at {offset}"
        )
        topics = [{"name": self.topic(), "partitions": requested}]
        fields = {"generationIdOrMemberEpoch": -1, "memberId": ""}
        self.call("OffsetCommit", self.version(2, 9), groupId=self.group(), topics=topics, **fields)

    def fetch_offsets(self) -> None:
        group = self.group()
        topics = [{"name": self.topic(), "partitionIndexes": [0, 1]}] if self.random.random() < 0.5 else None
        if self.random.random() < 0.5:
            self.call("OffsetFetch", self.version(2, 7), groupId=group, topics=topics)
        else:
            self.call("OffsetFetch", self.version(8, 9), groups=[{"groupId": group, "topics": topics}])

    def set_a_limit(self) -> None:
        value = self.random.choice(["1000", "100000", "-5", "x"])
        change = {"name": "max.message.bytes", "configOperation": 0, "value": value}
        topic = self.topic()
        resource = {"resourceType": 2, "resourceName": topic, "configs": [change]}
        self.call("IncrementalAlterConfigs", 1, resources=[resource])
        if value.isdigit():
            self.settled_setting(topic, value)

    def settled_setting(self, topic: str, value: str) -> None:
        """Wait until the setting is in effect: Kafka applies it to its log a moment after the response."""
        requested = {"resourceType": 2, "resourceName": topic, "configurationKeys": ["max.message.bytes"]}

        def known() -> bool:
            answer = self.talk.raw.call("DescribeConfigs", 4, resources=[requested])
            return bool(answer["results"][0]["configs"][0]["value"] == value)

        self.talk.wait(known)

    def add_partitions(self) -> None:
        topic, count = self.topic(GROWING), self.random.choice([2, 3])
        requested = [{"name": topic, "count": count, "assignments": None}]
        answer = self.call("CreatePartitions", self.version(0, 3), timeoutMs=10_000, topics=requested)
        if answer["results"][0]["errorCode"] == 0:
            self.talk.wait(lambda: self.talk.leads(topic, count))

    def delete_and_make_again(self) -> None:
        what = self.random.choice(GROWING + KEYED)
        self.call("DeleteTopics", self.version(1, 5), timeoutMs=10_000, topicNames=[self.talk.name(what)])
        self.talk.wait(lambda: not self.talk.leads(self.talk.name(what), 1))
        self.talk.topic(what, 2)
        # Kafka deletes the offsets of a deleted topic in the background, so the script deletes the groups too.
        for group in (self.talk.name("g"), self.talk.name("h")):
            self.talk.raw.call("DeleteGroups", 2, groupsNames=[group])

    def delete_group(self) -> None:
        self.call("DeleteGroups", self.version(0, 2), groupsNames=[self.group()])

    def describe(self) -> None:
        if self.random.random() < 0.5:
            self.call(
                "Metadata", self.version(4, 9), topics=[{"name": self.topic()}], allowAutoTopicCreation=False
            )
        else:
            self.call("DescribeGroups", self.version(0, 5), groups=[self.group()])


@pytest.mark.parametrize("seed", range(8))
def test_both_servers_respond_to_a_random_script_alike(
    headrace_server: Server, kafka_half: KafkaHalf, driver: JavaDriver, seed: int
) -> None:
    check_same_responses(
        headrace_server, kafka_half, driver, lambda talk: Script(talk, seed).run(), f"script-{seed}"
    )
