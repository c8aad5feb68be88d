"""Transactions, request by request: who holds an id, what is part of its transaction, and how it ends.

Kafka ends a transaction in the background and answers 51 (try again) meanwhile, and once more to whoever takes over an
id with an open transaction; our broker has decided when it answers. So Kafka is asked until the answer is another one,
our broker once, and states are noted when they are final.
"""

from __future__ import annotations

import base64
from typing import Any

from tests.support.batches import batch
from tests.support.waiting import until
from tests.wire.scripts.talk import Script, Talk

__all__ = ["TRANSACTIONS", "Holder", "added", "codes", "patiently", "take_over"]

# Not there yet, loading, moved, try again.
LATER = (14, 15, 16, 51)


def codes(answer: Any) -> list[int]:
    """Every error in an answer."""
    if isinstance(answer, dict):
        own = [value for key, value in answer.items() if key.lower().endswith("errorcode")]
        return own + [code for value in answer.values() for code in codes(value)]
    return [code for item in answer for code in codes(item)] if isinstance(answer, list) else []


def patiently(talk: Talk, api: str, version: int, /, **fields: Any) -> Any:
    if not talk.is_kafka:
        return talk.raw.ask(api, version, **fields)
    answers: list[Any] = []

    def settled() -> bool:
        answers.append(talk.raw.ask(api, version, **fields))
        return not any(code in LATER for code in codes(answers[-1]))

    until(settled, f"{api} is answered", pause_s=0.02)
    return answers[-1]


class Holder:
    """A producer that holds a transactional id, and its requests in any version."""

    def __init__(self, talk: Talk, what: str = "x", timeout_ms: int = 60_000) -> None:
        self.talk = talk
        self.id = talk.name(what)
        until(self._is_found, "the coordinator of transactions is there")
        fields = {"transactionalId": self.id, "transactionTimeoutMs": timeout_ms}
        answer = patiently(talk, "InitProducerId", 5, **fields)
        assert answer["errorCode"] == 0, answer
        self.producer, self.epoch = answer["producerId"], answer["producerEpoch"]

    def _is_found(self) -> bool:
        answer = self.talk.raw.ask("FindCoordinator", 4, coordinatorKeys=[self.id], keyType=1)
        return bool(answer["coordinators"][0]["errorCode"] == 0)

    def who(self, epochs: int = 0, producers: int = 0, other: str | None = None) -> dict[str, Any]:
        """Its names, or some that are off by so much."""
        return {
            "transactionalId": self.id if other is None else other,
            "producerId": self.producer + producers,
            "producerEpoch": self.epoch + epochs,
        }

    def note(self, label: str, api: str, version: int, /, **fields: Any) -> Any:
        answer = patiently(self.talk, api, version, **fields)
        self.talk.notes.append((label, self.talk.plain(answer)))
        return answer

    def write(self, topic: str, sequence: int = 0, version: int = 12, index: int = 0, epochs: int = 0) -> int:
        data = batch(1, producer=(self.producer, self.epoch + epochs, sequence), transactional=True)
        partition = {"index": index, "records": base64.b64encode(data).decode()}
        asked = [{"name": topic, "partitionData": [partition]}]
        fields = {"transactionalId": self.id, "acks": -1, "timeoutMs": 10_000, "topicData": asked}
        answer = patiently(self.talk, "Produce", version, **fields)
        code: int = answer["responses"][0]["partitionResponses"][0]["errorCode"]
        return code

    def end(self, *, commit: bool, version: int = 5) -> None:
        answer = patiently(self.talk, "EndTxn", version, committed=commit, **self.who())
        assert answer["errorCode"] == 0, answer
        if version >= 5:
            self.producer, self.epoch = answer["producerId"], answer["producerEpoch"]
        self.completed()

    def state(self) -> dict[str, Any]:
        answer = self.talk.raw.ask("DescribeTransactions", 0, transactionalIds=[self.id])
        state: dict[str, Any] = answer["transactionStates"][0]
        return state

    def completed(self) -> None:
        self.talk.wait(lambda: not self.state()["transactionState"].startswith("Prepare"))


def wrong(holder: Holder) -> dict[str, dict[str, Any]]:
    """Ways not to be the holder."""
    return {
        "a later epoch": holder.who(epochs=1),
        "an earlier epoch": holder.who(epochs=-1),
        "another producer": holder.who(producers=1_000_000),
        "an id that nobody holds": holder.who(other=holder.talk.name("nobody")),
        "no id": holder.who(other=""),
    }


def added(version: int, who: dict[str, Any], topic: str, *indexes: int, **more: Any) -> dict[str, Any]:
    topics = [{"name": topic, "partitions": list(indexes)}]
    if version >= 4:
        return {"transactions": [{**who, "topics": topics, **more}]}
    named = {f"v3AndBelow{key[0].upper()}{key[1:]}": value for key, value in who.items()}
    return {**named, "v3AndBelowTopics": topics}


def add_partitions(talk: Talk, version: int) -> None:
    topic, holder = talk.topic("t", 2), Holder(talk)
    api = "AddPartitionsToTxn"
    for label, who in wrong(holder).items():
        holder.note(label, api, version, **added(version, who, topic, 0))
    holder.note("a topic that is not there", api, version, **added(version, holder.who(), "nowhere", 0))
    if version >= 4:
        asked = added(version, holder.who(), topic, 0, verifyOnly=True)
        holder.note("asked before it is added", api, version, **asked)
    holder.note("one", api, version, **added(version, holder.who(), topic, 0))
    holder.note("the same again", api, version, **added(version, holder.who(), topic, 0))
    if version >= 4:
        asked = added(version, holder.who(), topic, 0, verifyOnly=True)
        holder.note("asked after it was added", api, version, **asked)
    talk.notes.append(("written to what was added", holder.write(topic, version=9)))
    talk.notes.append(("written to what was not", [holder.write(topic, version=v, index=1) for v in (9, 11)]))
    holder.end(commit=True, version=4)
    talk.notes.append(("written after the end", [holder.write(topic, 1, version=v) for v in (9, 11)]))


def add_offsets(talk: Talk, version: int) -> None:
    holder = Holder(talk)
    for label, who in wrong(holder).items():
        holder.note(label, "AddOffsetsToTxn", version, groupId=talk.name("g"), **who)
    holder.note("a group", "AddOffsetsToTxn", version, groupId=talk.name("g"), **holder.who())
    holder.note("the same again", "AddOffsetsToTxn", version, groupId=talk.name("g"), **holder.who())
    talk.notes.append(("the state", holder.state()["transactionState"]))


def end(talk: Talk, version: int) -> None:
    topic, holder = talk.topic("t"), Holder(talk)

    def ask(label: str, commit: bool, who: dict[str, Any]) -> Any:
        answer = holder.note(label, "EndTxn", version, committed=commit, **who)
        holder.completed()
        return answer

    for label, who in wrong(holder).items():
        ask(label, True, who)
    ask("commit of nothing", True, holder.who())
    answer = ask("abort of nothing", False, holder.who())
    if version >= 5:
        holder.epoch = answer["producerEpoch"]
    for commit in (True, False):
        talk.notes.append(("written", holder.write(topic, 0 if version >= 5 or commit else 1)))
        before = holder.who()
        answer = ask(f"end, {commit}", commit, before)
        if version >= 5:
            holder.epoch = answer["producerEpoch"]
        ask("the same again", commit, before)
        ask("the other end", not commit, before)
        if version >= 5:
            ask("commit of nothing after that", True, holder.who())
    # Two records and two markers, all of which a reader of committed records may pass. Markers are readable a moment
    # after the answer.
    asked = [{"name": topic, "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]

    def last(level: int) -> int:
        answer = talk.raw.ask("ListOffsets", 7, replicaId=-1, isolationLevel=level, topics=asked)
        offset: int = answer["topics"][0]["partitions"][0]["offset"]
        return offset

    talk.wait(lambda: last(1) >= 4)
    talk.notes.append(("the two ends", (last(0), last(1))))


def commit_offsets(talk: Talk, version: int) -> None:
    topic, holder, group = talk.topic("t"), Holder(talk), talk.name("g")
    until(
        lambda: (
            patiently(talk, "FindCoordinator", 4, coordinatorKeys=[group], keyType=0)["coordinators"][0][
                "errorCode"
            ]
            == 0
        ),
        "the coordinator of groups is there",
    )

    def ask(label: str, who: dict[str, Any], name: str = topic, offset: int = 5, **more: Any) -> None:
        partition = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": "note"}
        topics = [{"name": name, "partitions": [partition]}]
        holder.note(label, "TxnOffsetCommit", version, **{"groupId": group, **who, "topics": topics, **more})

    def fetch(label: str) -> None:
        for stable in (False, True):
            wanted = [{"name": topic, "partitionIndexes": [0]}]
            asked = {"groups": [{"groupId": group, "topics": wanted}], "requireStable": stable}
            talk.ask(f"{label}, {stable}", "OffsetFetch", 9, **asked)

    for label, who in wrong(holder).items():
        ask(label, who)
    ask("in a topic that is not there", holder.who(), talk.name("nowhere"))
    if version < 5:
        ask("before the group was added", holder.who())
        patiently(talk, "AddOffsetsToTxn", 3, groupId=group, **holder.who())
    ask("an offset", holder.who())
    ask("of no group", holder.who(), groupId="")
    if version >= 3:
        ask("of a generation that there is not", holder.who(), generationId=3, memberId="nobody")
    fetch("while it is open")
    holder.end(commit=True, version=4)
    fetch("after the commit")
    patiently(talk, "AddOffsetsToTxn", 3, groupId=group, **holder.who())
    ask("another", holder.who(), offset=9)
    holder.end(commit=False, version=4)
    fetch("after an abort")


def describe(talk: Talk, version: int) -> None:
    topic, holder = talk.topic("t", 2), Holder(talk)

    def ask(label: str) -> None:
        holder.completed()
        wanted = [holder.id, talk.name("nobody"), ""]
        answer = talk.raw.ask("DescribeTransactions", version, transactionalIds=wanted)
        for state in answer["transactionStates"]:
            began = state.pop("transactionStartTimeMs")
            talk.notes.append((f"{label}: begun", began > 0))
        talk.notes.append((label, talk.plain(answer)))

    ask("before anything")
    holder.write(topic)
    holder.write(topic, index=1)
    ask("while it is open")
    holder.end(commit=True)
    ask("after the commit")
    holder.write(topic)
    holder.end(commit=False)
    ask("after an abort")


def list_all(talk: Talk, version: int) -> None:
    topic = talk.topic("t")
    holder, other = Holder(talk, "app-one"), Holder(talk, "app-two")
    holder.write(topic)
    mine = {"producerIdFilters": [holder.producer, other.producer]}
    talk.ask("both", "ListTransactions", version, **mine)
    for states in (["Ongoing"], ["Empty", "Ongoing"], ["ongoing", "zap"], ["Dead"], ["PrepareEpochFence"]):
        talk.ask(f"by state {states}", "ListTransactions", version, stateFilters=states, **mine)
    if version >= 1:
        talk.ask("by a long duration", "ListTransactions", version, durationFilter=10**9, **mine)
    if version >= 2:
        for pattern in (f"{talk.stem}.app-.*", "app-one", "", "("):
            pattern_of = {"transactionalIdPattern": pattern}
            talk.ask(f"by name {pattern}", "ListTransactions", version, **pattern_of, **mine)
    holder.end(commit=True)
    talk.ask("after the commit", "ListTransactions", version, **mine)


def take_over(talk: Talk, version: int) -> None:
    """InitProducerId for transactional ids."""
    topic, holder = talk.topic("t"), Holder(talk)

    def ask(label: str, timeout_ms: int = 60_000, **fields: Any) -> Any:
        given = {"transactionalId": holder.id, "transactionTimeoutMs": timeout_ms, **fields}
        return holder.note(label, "InitProducerId", version, **given)

    ask("no id", transactionalId="")
    for timeout_ms in (0, -1, 900_001):
        ask(f"a time-out of {timeout_ms}", timeout_ms)
    talk.notes.append(("written", holder.write(topic)))
    ask("a successor")
    talk.notes.append(("the zombie writes", [holder.write(topic, 1, version=v) for v in (9, 11, 12)]))
    for commit in (True, False):
        for spoken in (1, 2, 5):
            holder.note("the zombie ends it", "EndTxn", spoken, committed=commit, **holder.who())
    if version >= 3:
        own = {"producerId": holder.producer, "producerEpoch": holder.epoch}
        ask("the zombie goes on", **own)
        now = holder.state()["producerEpoch"]
        for label, epoch in (("the holder goes on", now), ("again", now), ("from before", now - 1)):
            ask(label, **{**own, "producerEpoch": epoch})
        ask("half a name", **{**own, "producerEpoch": -1})
        ask("another producer", **{**own, "producerId": holder.producer + 1_000_000})


TRANSACTIONS: dict[str, Script] = {
    "AddPartitionsToTxn": add_partitions,
    "AddOffsetsToTxn": add_offsets,
    "EndTxn": end,
    "TxnOffsetCommit": commit_offsets,
    "DescribeTransactions": describe,
    "ListTransactions": list_all,
}
