"""Random transactions on both servers: two producers take two ids over from each other, in both protocols and mixed,
and every response is the same.

The seed is in the test's name. The next request of a client depends on the seed and on the epochs that it received,
which are the same on both servers as long as all responses are.
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
from tests.support.batches import batch
from tests.wire.scripts.alike import check_same_responses
from tests.wire.scripts.groups import coordinator
from tests.wire.scripts.talk import Conversation
from tests.wire.scripts.transactions import (
    TransactionalProducer,
    add_partitions_fields,
    call_until_final,
    error_codes,
)

STEPS = 50


class Client:
    """The id and epoch that one producer received."""

    def __init__(self, transactional_id: str) -> None:
        self.id = transactional_id
        self.producer = -1
        self.epoch = -1
        self.sequences: dict[tuple[int, int, int], int] = {}

    @property
    def who(self) -> dict[str, Any]:
        return {"transactionalId": self.id, "producerId": self.producer, "producerEpoch": self.epoch}


class Script:
    def __init__(self, talk: Conversation, seed: int) -> None:
        self.talk = talk
        self.random = random.Random(seed)
        self.topic = talk.topic("t", 3)
        self.group = talk.name("g")
        coordinator(talk)
        self.clients = []
        for what in ("x", "y"):
            holder = TransactionalProducer(talk, what)
            self.clients += [Client(holder.id), Client(holder.id)]
        #: The client that last took over each id.
        self.holders: dict[str, Client] = {}
        self.steps: list[tuple[Callable[[Client], None], int]] = [
            (self.init, 2),
            (self.produce, 8),
            (self.add_partitions, 4),
            (self.add_offsets, 2),
            (self.commit_offsets, 3),
            (self.end, 7),
            (self.describe, 2),
            (self.fetch_offsets, 2),
        ]

    def run(self) -> None:
        for client in self.clients[::2]:
            self.init(client)
        steps, weights = zip(*self.steps, strict=True)
        for step in self.random.choices(steps, weights, k=STEPS):
            client = self.random.choice(self.clients)
            # Mostly the owner of the id, so that many transactions end, and sometimes a zombie.
            step(self.holders[client.id] if self.random.random() < 0.7 else client)

    def note(self, what: str, client: Client, noted: Any) -> None:
        label = f"step {len(self.talk.notes)}: {what} by {self.clients.index(client)} at epoch {client.epoch}"
        self.talk.notes.append((label, noted))

    def call(self, client: Client, api: str, version: int, /, **fields: Any) -> Any:
        answer = call_until_final(self.talk, api, version, **fields)
        shown = {key: value for key, value in fields.items() if key in ("committed", "groupId")}
        self.note(f"{api} {version} {shown}", client, self.talk.plain(answer))
        return answer

    def settled(self, client: Client) -> dict[str, Any]:
        """The state of the client's id after Kafka has written all markers."""
        found: dict[str, Any] = {}

        def is_settled() -> bool:
            answer = self.talk.raw.call("DescribeTransactions", 0, transactionalIds=[client.id])
            found.update(answer["transactionStates"][0])
            return not found["transactionState"].startswith("Prepare")

        self.talk.wait(is_settled)
        return found

    def init(self, client: Client) -> None:
        # A zombie that requests a new epoch aborts its successor's transaction in Kafka, but not in our broker.
        own = self.holders.get(client.id) is client and self.random.random() < 0.5
        mine = {"producerId": client.producer, "producerEpoch": client.epoch} if own else {}
        fields = {"transactionalId": client.id, "transactionTimeoutMs": 60_000, **mine}
        answer = self.call(client, "InitProducerId", self.random.randint(3, 5), **fields)
        if answer["errorCode"] == 0:
            client.producer, client.epoch = answer["producerId"], answer["producerEpoch"]
            self.holders[client.id] = client

    def produce(self, client: Client) -> None:
        index, version = self.random.randrange(3), self.random.choice([9, 11, 12, 12])
        if client.producer < 0:
            return
        key = (index, client.producer, client.epoch)
        sequence = client.sequences.get(key, 0)
        data = batch(1, producer=(client.producer, client.epoch, sequence), transactional=True)
        records = {"index": index, "records": base64.b64encode(data).decode()}
        topics = [{"name": self.topic, "partitionData": [records]}]
        fields = {"transactionalId": client.id, "acks": -1, "timeoutMs": 10_000, "topicData": topics}
        answer = call_until_final(self.talk, "Produce", version, **fields)
        code = answer["responses"][0]["partitionResponses"][0]["errorCode"]
        self.note(f"Produce {version} to {index}, sequence {sequence}", client, code)
        if code == 0:
            client.sequences[key] = sequence + 1

    def add_partitions(self, client: Client) -> None:
        version = self.random.randint(0, 5)
        indexes = self.random.sample(range(4), self.random.randint(1, 2))
        answer = call_until_final(
            self.talk,
            "AddPartitionsToTxn",
            version,
            **add_partitions_fields(version, client.who, self.topic, *indexes),
        )
        self.note(f"AddPartitionsToTxn {version} {sorted(indexes)}", client, sorted(error_codes(answer)))

    def add_offsets(self, client: Client) -> None:
        version = self.random.randint(0, 4)
        self.call(client, "AddOffsetsToTxn", version, groupId=self.group, **client.who)

    def commit_offsets(self, client: Client) -> None:
        version, offset = self.random.randint(0, 5), self.random.randrange(100)
        partition = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": ""}
        topics = [{"name": self.topic, "partitions": [partition]}]
        self.call(client, "TxnOffsetCommit", version, groupId=self.group, topics=topics, **client.who)

    def end(self, client: Client) -> None:
        version, commit = self.random.choice([1, 4, 5, 5]), self.random.random() < 0.6
        answer = self.call(client, "EndTxn", version, committed=commit, **client.who)
        if version >= 5 and answer["errorCode"] == 0:
            client.producer, client.epoch = answer["producerId"], answer["producerEpoch"]
        self.describe(client)

    def describe(self, client: Client) -> None:
        state = self.settled(client)
        # Kafka stores offsets in a topic, whose partition is then part of the transaction.
        topics = [
            (entry["topic"], sorted(entry["partitions"]))
            for entry in state["topics"]
            if entry["topic"] == self.topic
        ]
        noted = (state["errorCode"], state["transactionState"], state["producerEpoch"], topics)
        self.note("DescribeTransactions", client, noted)

    def fetch_offsets(self, client: Client) -> None:
        for other in self.clients:
            self.settled(other)
        wanted = [{"name": self.topic, "partitionIndexes": [0]}]
        stable = self.random.random() < 0.5
        request = {"groups": [{"groupId": self.group, "topics": wanted}], "requireStable": stable}
        self.note(
            f"OffsetFetch, {stable}", client, self.talk.plain(self.talk.raw.call("OffsetFetch", 9, **request))
        )


@pytest.mark.parametrize("seed", range(6))
def test_both_servers_respond_to_random_transactions_alike(
    headrace_server: Server, kafka_half: KafkaHalf, driver: JavaDriver, seed: int
) -> None:
    check_same_responses(
        headrace_server, kafka_half, driver, lambda talk: Script(talk, seed).run(), f"random-{seed}"
    )
