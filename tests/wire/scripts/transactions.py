"""Transactions, request by request: the owner of an id, the partitions of its transaction, and how it ends.

Kafka ends a transaction in the background. Meanwhile it responds with error 51 (retry), also to a producer that takes
over an id with an open transaction. The embedded broker has completed the transaction when it responds. Therefore a
script repeats requests to Kafka until another response arrives, sends them once to the embedded broker, and records
only final states.
"""

from __future__ import annotations

import base64
from typing import Any

from faults.wait import until
from tests.support.batches import batch
from tests.wire.scripts.talk import Conversation, Script

__all__ = [
    "TRANSACTIONS",
    "TransactionalProducer",
    "add_partitions_fields",
    "call_until_final",
    "error_codes",
    "take_over",
]

# Coordinator not available, loading or moved; or retry.
RETRIABLE = (14, 15, 16, 51)


def error_codes(answer: Any) -> list[int]:
    """Return all error codes in a response."""
    if isinstance(answer, dict):
        direct = [value for key, value in answer.items() if key.lower().endswith("errorcode")]
        return direct + [code for value in answer.values() for code in error_codes(value)]
    return [code for item in answer for code in error_codes(item)] if isinstance(answer, list) else []


def call_until_final(talk: Conversation, api: str, version: int, /, **fields: Any) -> Any:
    if not talk.is_kafka:
        return talk.raw.call(api, version, **fields)
    answers: list[Any] = []

    def settled() -> bool:
        answers.append(talk.raw.call(api, version, **fields))
        return not any(code in RETRIABLE for code in error_codes(answers[-1]))

    until(settled, f"{api} is answered", pause_s=0.02)
    return answers[-1]


class TransactionalProducer:
    """A producer that owns a transactional id, and its requests in any version."""

    def __init__(self, talk: Conversation, what: str = "x", timeout_ms: int = 60_000) -> None:
        self.talk = talk
        self.id = talk.name(what)
        until(self._is_found, "the coordinator of transactions is there")
        fields = {"transactionalId": self.id, "transactionTimeoutMs": timeout_ms}
        answer = call_until_final(talk, "InitProducerId", 5, **fields)
        assert answer["errorCode"] == 0, answer
        self.producer, self.epoch = answer["producerId"], answer["producerEpoch"]

    def _is_found(self) -> bool:
        answer = self.talk.raw.call("FindCoordinator", 4, coordinatorKeys=[self.id], keyType=1)
        return bool(answer["coordinators"][0]["errorCode"] == 0)

    def who(self, epochs: int = 0, producers: int = 0, other: str | None = None) -> dict[str, Any]:
        """The transactional id, producer id and epoch. The amounts are added to the producer id and the epoch."""
        return {
            "transactionalId": self.id if other is None else other,
            "producerId": self.producer + producers,
            "producerEpoch": self.epoch + epochs,
        }

    def note(self, label: str, api: str, version: int, /, **fields: Any) -> Any:
        answer = call_until_final(self.talk, api, version, **fields)
        self.talk.notes.append((label, self.talk.plain(answer)))
        return answer

    def write(self, topic: str, sequence: int = 0, version: int = 12, index: int = 0, epochs: int = 0) -> int:
        data = batch(1, producer=(self.producer, self.epoch + epochs, sequence), transactional=True)
        partition = {"index": index, "records": base64.b64encode(data).decode()}
        topic_data = [{"name": topic, "partitionData": [partition]}]
        fields = {"transactionalId": self.id, "acks": -1, "timeoutMs": 10_000, "topicData": topic_data}
        answer = call_until_final(self.talk, "Produce", version, **fields)
        code: int = answer["responses"][0]["partitionResponses"][0]["errorCode"]
        return code

    def end(self, *, commit: bool, version: int = 5) -> None:
        answer = call_until_final(self.talk, "EndTxn", version, committed=commit, **self.who())
        assert answer["errorCode"] == 0, answer
        if version >= 5:
            self.producer, self.epoch = answer["producerId"], answer["producerEpoch"]
        self.completed()

    def state(self) -> dict[str, Any]:
        answer = self.talk.raw.call("DescribeTransactions", 0, transactionalIds=[self.id])
        state: dict[str, Any] = answer["transactionStates"][0]
        return state

    def completed(self) -> None:
        self.talk.wait(lambda: not self.state()["transactionState"].startswith("Prepare"))


def wrong_identities(holder: TransactionalProducer) -> dict[str, dict[str, Any]]:
    """Return the fields of producers that do not own the id."""
    return {
        "a later epoch": holder.who(epochs=1),
        "an earlier epoch": holder.who(epochs=-1),
        "another producer": holder.who(producers=1_000_000),
        "an id that nobody holds": holder.who(other=holder.talk.name("nobody")),
        "no id": holder.who(other=""),
    }


def add_partitions_fields(
    version: int, who: dict[str, Any], topic: str, *indexes: int, **more: Any
) -> dict[str, Any]:
    topics = [{"name": topic, "partitions": list(indexes)}]
    if version >= 4:
        return {"transactions": [{**who, "topics": topics, **more}]}
    prefixed = {f"v3AndBelow{key[0].upper()}{key[1:]}": value for key, value in who.items()}
    return {**prefixed, "v3AndBelowTopics": topics}


def add_partitions(talk: Conversation, version: int) -> None:
    topic, holder = talk.topic("t", 2), TransactionalProducer(talk)
    api = "AddPartitionsToTxn"
    for label, who in wrong_identities(holder).items():
        holder.note(label, api, version, **add_partitions_fields(version, who, topic, 0))
    holder.note(
        "a topic that is not there",
        api,
        version,
        **add_partitions_fields(version, holder.who(), "nowhere", 0),
    )
    if version >= 4:
        request = add_partitions_fields(version, holder.who(), topic, 0, verifyOnly=True)
        holder.note("asked before it is added", api, version, **request)
    holder.note("one", api, version, **add_partitions_fields(version, holder.who(), topic, 0))
    holder.note("the same again", api, version, **add_partitions_fields(version, holder.who(), topic, 0))
    if version >= 4:
        request = add_partitions_fields(version, holder.who(), topic, 0, verifyOnly=True)
        holder.note("asked after it was added", api, version, **request)
    talk.notes.append(("written to what was added", holder.write(topic, version=9)))
    talk.notes.append(("written to what was not", [holder.write(topic, version=v, index=1) for v in (9, 11)]))
    holder.end(commit=True, version=4)
    talk.notes.append(("written after the end", [holder.write(topic, 1, version=v) for v in (9, 11)]))


def add_offsets(talk: Conversation, version: int) -> None:
    holder = TransactionalProducer(talk)
    for label, who in wrong_identities(holder).items():
        holder.note(label, "AddOffsetsToTxn", version, groupId=talk.name("g"), **who)
    holder.note("a group", "AddOffsetsToTxn", version, groupId=talk.name("g"), **holder.who())
    holder.note("the same again", "AddOffsetsToTxn", version, groupId=talk.name("g"), **holder.who())
    talk.notes.append(("the state", holder.state()["transactionState"]))


def end(talk: Conversation, version: int) -> None:
    topic, holder = talk.topic("t"), TransactionalProducer(talk)

    def call(label: str, commit: bool, who: dict[str, Any]) -> Any:
        answer = holder.note(label, "EndTxn", version, committed=commit, **who)
        holder.completed()
        return answer

    for label, who in wrong_identities(holder).items():
        call(label, True, who)
    call("commit of nothing", True, holder.who())
    answer = call("abort of nothing", False, holder.who())
    if version >= 5:
        holder.epoch = answer["producerEpoch"]
    for commit in (True, False):
        talk.notes.append(("written", holder.write(topic, 0 if version >= 5 or commit else 1)))
        before = holder.who()
        answer = call(f"end, {commit}", commit, before)
        if version >= 5:
            holder.epoch = answer["producerEpoch"]
        call("the same again", commit, before)
        call("the other end", not commit, before)
        if version >= 5:
            call("commit of nothing after that", True, holder.who())
    # Two records and two markers, all below the last stable offset. Markers become readable shortly after the response.
    topics = [{"name": topic, "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]

    def last(level: int) -> int:
        answer = talk.raw.call("ListOffsets", 7, replicaId=-1, isolationLevel=level, topics=topics)
        offset: int = answer["topics"][0]["partitions"][0]["offset"]
        return offset

    talk.wait(lambda: last(1) >= 4)
    talk.notes.append(("the two ends", (last(0), last(1))))


def commit_offsets(talk: Conversation, version: int) -> None:
    topic, holder, group = talk.topic("t"), TransactionalProducer(talk), talk.name("g")
    until(
        lambda: (
            call_until_final(talk, "FindCoordinator", 4, coordinatorKeys=[group], keyType=0)["coordinators"][
                0
            ]["errorCode"]
            == 0
        ),
        "the coordinator of groups is there",
    )

    def call(label: str, who: dict[str, Any], name: str = topic, offset: int = 5, **more: Any) -> None:
        partition = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": "note"}
        topics = [{"name": name, "partitions": [partition]}]
        holder.note(label, "TxnOffsetCommit", version, **{"groupId": group, **who, "topics": topics, **more})

    def fetch(label: str) -> None:
        for stable in (False, True):
            wanted = [{"name": topic, "partitionIndexes": [0]}]
            request = {"groups": [{"groupId": group, "topics": wanted}], "requireStable": stable}
            talk.call(f"{label}, {stable}", "OffsetFetch", 9, **request)

    for label, who in wrong_identities(holder).items():
        call(label, who)
    call("in a topic that is not there", holder.who(), talk.name("nowhere"))
    if version < 5:
        call("before the group was added", holder.who())
        call_until_final(talk, "AddOffsetsToTxn", 3, groupId=group, **holder.who())
    call("an offset", holder.who())
    call("of no group", holder.who(), groupId="")
    if version >= 3:
        call("of a generation that there is not", holder.who(), generationId=3, memberId="nobody")
    fetch("while it is open")
    holder.end(commit=True, version=4)
    fetch("after the commit")
    call_until_final(talk, "AddOffsetsToTxn", 3, groupId=group, **holder.who())
    call("another", holder.who(), offset=9)
    holder.end(commit=False, version=4)
    fetch("after an abort")


def describe(talk: Conversation, version: int) -> None:
    topic, holder = talk.topic("t", 2), TransactionalProducer(talk)

    def call(label: str) -> None:
        holder.completed()
        wanted = [holder.id, talk.name("nobody"), ""]
        answer = talk.raw.call("DescribeTransactions", version, transactionalIds=wanted)
        for state in answer["transactionStates"]:
            began = state.pop("transactionStartTimeMs")
            talk.notes.append((f"{label}: begun", began > 0))
        talk.notes.append((label, talk.plain(answer)))

    call("before anything")
    holder.write(topic)
    holder.write(topic, index=1)
    call("while it is open")
    holder.end(commit=True)
    call("after the commit")
    holder.write(topic)
    holder.end(commit=False)
    call("after an abort")


def list_all(talk: Conversation, version: int) -> None:
    topic = talk.topic("t")
    holder, other = TransactionalProducer(talk, "app-one"), TransactionalProducer(talk, "app-two")
    holder.write(topic)
    own_ids = {"producerIdFilters": [holder.producer, other.producer]}
    talk.call("both", "ListTransactions", version, **own_ids)
    for states in (["Ongoing"], ["Empty", "Ongoing"], ["ongoing", "zap"], ["Dead"], ["PrepareEpochFence"]):
        talk.call(f"by state {states}", "ListTransactions", version, stateFilters=states, **own_ids)
    if version >= 1:
        talk.call("by a long duration", "ListTransactions", version, durationFilter=10**9, **own_ids)
    if version >= 2:
        for pattern in (f"{talk.stem}.app-.*", "app-one", "", "("):
            pattern_of = {"transactionalIdPattern": pattern}
            talk.call(f"by name {pattern}", "ListTransactions", version, **pattern_of, **own_ids)
    holder.end(commit=True)
    talk.call("after the commit", "ListTransactions", version, **own_ids)


def take_over(talk: Conversation, version: int) -> None:
    """InitProducerId for transactional ids."""
    topic, holder = talk.topic("t"), TransactionalProducer(talk)

    def call(label: str, timeout_ms: int = 60_000, **fields: Any) -> Any:
        request = {"transactionalId": holder.id, "transactionTimeoutMs": timeout_ms, **fields}
        return holder.note(label, "InitProducerId", version, **request)

    call("no id", transactionalId="")
    for timeout_ms in (0, -1, 900_001):
        call(f"a time-out of {timeout_ms}", timeout_ms)
    talk.notes.append(("written", holder.write(topic)))
    call("a successor")
    talk.notes.append(("the zombie writes", [holder.write(topic, 1, version=v) for v in (9, 11, 12)]))
    for commit in (True, False):
        for end_version in (1, 2, 5):
            holder.note("the zombie ends it", "EndTxn", end_version, committed=commit, **holder.who())
    if version >= 3:
        own = {"producerId": holder.producer, "producerEpoch": holder.epoch}
        call("the zombie goes on", **own)
        current = holder.state()["producerEpoch"]
        for label, epoch in (
            ("the holder goes on", current),
            ("again", current),
            ("from before", current - 1),
        ):
            call(label, **{**own, "producerEpoch": epoch})
        call("half a name", **{**own, "producerEpoch": -1})
        call("another producer", **{**own, "producerId": holder.producer + 1_000_000})


TRANSACTIONS: dict[str, Script] = {
    "AddPartitionsToTxn": add_partitions,
    "AddOffsetsToTxn": add_offsets,
    "EndTxn": end,
    "TxnOffsetCommit": commit_offsets,
    "DescribeTransactions": describe,
    "ListTransactions": list_all,
}
