"""Classic groups, member by member, and committed offsets."""

from __future__ import annotations

import base64
from typing import Any

from faults.wait import until
from tests.wire.scripts.talk import UNKNOWN_TOPIC_ID, Conversation, Script, per_partition
from tests.wire.scripts.transactions import TransactionalProducer

__all__ = ["GROUPS", "join_alone"]

# Versions of the other APIs that a script uses; any version would do.
JOIN, SYNC = 5, 3
SUBSCRIPTION, ASSIGNMENT = (base64.b64encode(data).decode() for data in (b"\0\0\0\0\0\0", b"an assignment"))


def coordinator(talk: Conversation) -> None:
    """Wait for the coordinator. Kafka creates its offsets topic at the first request; later scripts find it."""

    def found() -> bool:
        answer = talk.raw.call("FindCoordinator", 4, coordinatorKeys=["any"], keyType=0)
        return bool(answer["coordinators"][0]["errorCode"] == 0)

    until(found, "the coordinator is there")
    probe = {"groupId": talk.name("probe"), "generationId": 1, "memberId": "nobody"}
    until(lambda: talk.raw.call("Heartbeat", 0, **probe)["errorCode"] == 25, "the coordinator has loaded")


def join_fields(group: str, member: str = "", **fields: Any) -> dict[str, Any]:
    protocols = [{"name": name, "metadata": SUBSCRIPTION} for name in ("range", "roundrobin")]
    member_fields = {"groupId": group, "memberId": member, "protocolType": "consumer", "protocols": protocols}
    return {"sessionTimeoutMs": 10_000, "rebalanceTimeoutMs": 10_000, **member_fields, **fields}


def join_alone(talk: Conversation, group: str, instance: str | None = None) -> tuple[str, int]:
    """Join a group as its only member; return the member id and the generation."""
    coordinator(talk)
    request = join_fields(group, groupInstanceId=instance)
    answer = talk.raw.call("JoinGroup", JOIN, **request)
    if answer["errorCode"] == 79:
        answer = talk.raw.call("JoinGroup", JOIN, **{**request, "memberId": answer["memberId"]})
    assert answer["errorCode"] == 0, answer
    member, generation = answer["memberId"], answer["generationId"]
    assignments = [{"memberId": member, "assignment": ASSIGNMENT}]
    fields = {"groupId": group, "memberId": member, "generationId": generation, "groupInstanceId": instance}
    assert talk.raw.call("SyncGroup", SYNC, assignments=assignments, **fields)["errorCode"] == 0
    return member, generation


def find_coordinator(talk: Conversation, version: int) -> None:
    coordinator(talk)
    for key in (talk.name("g"), ""):
        keys = {"coordinatorKeys": [key]} if version >= 4 else {"key": key}
        talk.call(f"of a group {key!r}", "FindCoordinator", version, keyType=0, **keys)
    if version >= 4:
        talk.call("of two", "FindCoordinator", version, keyType=0, coordinatorKeys=["a", "b"])
    if version >= 1:
        keys = {"coordinatorKeys": ["x"]} if version >= 4 else {"key": "x"}
        TransactionalProducer(talk)
        talk.call("of a transaction", "FindCoordinator", version, keyType=1, **keys)
        talk.call("of no known kind", "FindCoordinator", version, keyType=9, **keys)


def join(talk: Conversation, version: int) -> None:
    coordinator(talk)
    group = talk.name("g")
    first = talk.call("the first", "JoinGroup", version, **join_fields(group))
    member = first["memberId"]
    if first["errorCode"] == 79:
        talk.call("with the id it was given", "JoinGroup", version, **join_fields(group, member))
    talk.call("again, before the others know", "JoinGroup", version, **join_fields(group, member))
    talk.call("with an id that nobody was given", "JoinGroup", version, **join_fields(group, "nobody"))
    talk.call("without a group", "JoinGroup", version, **join_fields(""))
    short_session = join_fields(talk.name("other"), sessionTimeoutMs=100)
    talk.call("with too short a session", "JoinGroup", version, **short_session)
    long_session = join_fields(talk.name("other"), sessionTimeoutMs=1_800_001)
    talk.call("with too long a session", "JoinGroup", version, **long_session)
    other = join_fields(group, protocolType="connect")
    talk.call("as another type", "JoinGroup", version, **other)
    no_protocols = join_fields(talk.name("other"), protocols=[])
    talk.call("with no protocol", "JoinGroup", version, **no_protocols)
    foreign_protocol = join_fields(group, protocols=[{"name": "zap", "metadata": SUBSCRIPTION}])
    talk.call("with no protocol in common", "JoinGroup", version, **foreign_protocol)
    if version >= 5:
        static = talk.name("static")
        join_alone(talk, static, "one")
        talk.call(
            "a static member returns", "JoinGroup", version, **join_fields(static, groupInstanceId="one")
        )


def sync(talk: Conversation, version: int) -> None:
    group = talk.name("g")
    member, generation = join_alone(talk, group)
    valid_fields = {"groupId": group, "memberId": member, "generationId": generation, "assignments": []}
    if version >= 5:
        valid_fields |= {"protocolType": "consumer", "protocolName": "range"}
    talk.call("again", "SyncGroup", version, **valid_fields)
    talk.call(
        "of another generation", "SyncGroup", version, **{**valid_fields, "generationId": generation + 1}
    )
    talk.call("of nobody", "SyncGroup", version, **{**valid_fields, "memberId": "nobody"})
    talk.call("of no group", "SyncGroup", version, **{**valid_fields, "groupId": talk.name("nowhere")})
    talk.call("of an empty name", "SyncGroup", version, **{**valid_fields, "groupId": ""})
    if version >= 5:
        talk.call("as another type", "SyncGroup", version, **{**valid_fields, "protocolType": "connect"})
        talk.call("with another protocol", "SyncGroup", version, **{**valid_fields, "protocolName": "zap"})


def heartbeat(talk: Conversation, version: int) -> None:
    group = talk.name("g")
    member, generation = join_alone(talk, group)
    valid_fields = {"groupId": group, "memberId": member, "generationId": generation}
    talk.call("of a member", "Heartbeat", version, **valid_fields)
    talk.call(
        "of another generation", "Heartbeat", version, **{**valid_fields, "generationId": generation + 1}
    )
    talk.call("of nobody", "Heartbeat", version, **{**valid_fields, "memberId": "nobody"})
    talk.call("of no group", "Heartbeat", version, **{**valid_fields, "groupId": talk.name("nowhere")})
    talk.call("of an empty name", "Heartbeat", version, **{**valid_fields, "groupId": ""})
    if version >= 3:
        talk.call("of an instance nobody has", "Heartbeat", version, groupInstanceId="x", **valid_fields)


def leave(talk: Conversation, version: int) -> None:
    group = talk.name("g")
    member, generation = join_alone(talk, group)

    def go(label: str, who: str, name: str = group, instance: str | None = None) -> None:
        identity = (
            {"members": [{"memberId": who, "groupInstanceId": instance}]}
            if version >= 3
            else {"memberId": who}
        )
        talk.call(label, "LeaveGroup", version, groupId=name, **identity)

    go("nobody", "nobody")
    go("no group", member, talk.name("nowhere"))
    go("a member", member)
    go("the same again", member)
    request = {"groupId": group, "memberId": member, "generationId": generation}
    talk.call("its heartbeat after that", "Heartbeat", 3, **request)
    if version >= 3:
        static = talk.name("static")
        join_alone(talk, static, "one")
        go("an instance", "", static, "one")
        go("an instance nobody has", "", static, "two")


def commit_fields(talk: Conversation, topic: str, offset: int = 5, index: int = 0) -> list[dict[str, Any]]:
    topic_fields = {"name": topic, "topicId": talk.ids.get(topic, UNKNOWN_TOPIC_ID)}
    return [
        {
            **topic_fields,
            "partitions": per_partition([index], committedOffset=offset, committedMetadata="note"),
        }
    ]


def commit(talk: Conversation, version: int) -> None:
    topic, group = talk.topic("t"), talk.name("g")
    member, generation = join_alone(talk, group)

    def put(label: str, **fields: Any) -> None:
        identity = {"groupId": group, "memberId": member, "generationIdOrMemberEpoch": generation}
        request = {**identity, "topics": commit_fields(talk, topic), **fields}
        talk.call(label, "OffsetCommit", version, **request)

    put("of a member")
    put("of another generation", generationIdOrMemberEpoch=generation + 1)
    put("of nobody", memberId="nobody")
    put("from outside a group that has members", generationIdOrMemberEpoch=-1, memberId="")
    put("without members", groupId=talk.name("plain"), generationIdOrMemberEpoch=-1, memberId="")
    put("of a generation that never was", groupId=talk.name("never"), generationIdOrMemberEpoch=3)
    put("of a topic that is not there", topics=commit_fields(talk, talk.name("nowhere")))
    put("of a partition that is not there", topics=commit_fields(talk, topic, index=4))
    long_metadata = commit_fields(talk, topic)
    long_metadata[0]["partitions"][0]["committedMetadata"] = "x" * 5000
    put("with a long note", topics=long_metadata)
    request = {"groupId": group, "topics": [{"name": topic, "partitionIndexes": [0]}]}
    talk.call("what stands", "OffsetFetch", 5, **request)


def offset_fetch(talk: Conversation, version: int) -> None:
    topic, group = talk.topic("t", 2), talk.name("g")
    coordinator(talk)
    fields = {"groupId": group, "generationIdOrMemberEpoch": -1, "memberId": ""}
    talk.call("commit", "OffsetCommit", 8, topics=commit_fields(talk, topic), **fields)

    def get(label: str, name: str, *indexes: int, of: str = topic) -> None:
        topic_fields: dict[str, Any] = {"name": of, "partitionIndexes": list(indexes)}
        if version >= 8:
            topic_fields["topicId"] = talk.ids.get(of, UNKNOWN_TOPIC_ID)
        topics = [topic_fields] if indexes else None
        request: dict[str, Any] = {"groupId": name, "topics": topics}
        if version >= 8:
            request = {"groups": [request]}
        talk.call(label, "OffsetFetch", version, **request)

    get("both partitions", group, 0, 1)
    if version >= 2:
        get("everything", group)
        get("everything of no group", talk.name("nowhere"))
    get("of no group", talk.name("nowhere"), 0)
    get("of a topic that is not there", group, 0, of=talk.name("nowhere"))


def describe(talk: Conversation, version: int) -> None:
    group = talk.name("g")
    member, _ = join_alone(talk, group)
    coordinator(talk)
    topic = talk.topic("t")
    fields = {"generationIdOrMemberEpoch": -1, "memberId": "", "topics": commit_fields(talk, topic)}
    talk.raw.call("OffsetCommit", 8, groupId=talk.name("plain"), **fields)
    for name in (group, talk.name("plain"), talk.name("nowhere")):
        talk.call(f"of {name}", "DescribeGroups", version, groups=[name])
    if version >= 3:
        talk.call(
            "what one may do", "DescribeGroups", version, groups=[group], includeAuthorizedOperations=True
        )
    talk.raw.call("LeaveGroup", 3, groupId=group, members=[{"memberId": member}])
    talk.call("after its last member has left", "DescribeGroups", version, groups=[group])


def list_groups(talk: Conversation, version: int) -> None:
    group, plain = talk.name("g"), talk.name("plain")
    join_alone(talk, group)
    topic = talk.topic("t")
    fields = {"generationIdOrMemberEpoch": -1, "memberId": "", "topics": commit_fields(talk, topic)}
    talk.raw.call("OffsetCommit", 8, groupId=plain, **fields)

    def list_groups(label: str, **filters: Any) -> None:
        answer = talk.raw.call("ListGroups", version, **filters)
        # The servers also have groups of other tests.
        own_groups = [entry for entry in answer["groups"] if entry["groupId"] in (group, plain)]
        talk.notes.append((label, (answer["errorCode"], talk.plain({"groups": own_groups}))))

    list_groups("all")
    list_groups("all, once more")
    if version >= 4:
        list_groups("stable ones", statesFilter=["Stable"])
        list_groups("empty ones, in small letters", statesFilter=["empty"])
        list_groups("no known state", statesFilter=["Zap"])
    if version >= 5:
        list_groups("classic ones", typesFilter=["classic"])
        list_groups("no known type", typesFilter=["zap"])


def delete_groups(talk: Conversation, version: int) -> None:
    group, plain, topic = talk.name("g"), talk.name("plain"), talk.topic("t")
    join_alone(talk, group)
    fields = {"generationIdOrMemberEpoch": -1, "memberId": "", "topics": commit_fields(talk, topic)}
    talk.raw.call("OffsetCommit", 8, groupId=plain, **fields)
    names = [group, plain, talk.name("nowhere")]
    talk.call("one with members, one without, one that is none", "DeleteGroups", version, groupsNames=names)
    talk.call("again", "DeleteGroups", version, groupsNames=[plain])
    request = {"groupId": plain, "topics": [{"name": topic, "partitionIndexes": [0]}]}
    talk.call("its offsets after that", "OffsetFetch", 5, **request)


def delete_offsets(talk: Conversation, version: int) -> None:
    group, topic = talk.name("g"), talk.topic("t", 2)
    coordinator(talk)
    fields = {"generationIdOrMemberEpoch": -1, "memberId": "", "topics": commit_fields(talk, topic)}
    talk.raw.call("OffsetCommit", 8, groupId=group, **fields)

    def delete(label: str, name: str, of: str = topic) -> None:
        topics = [{"name": of, "partitions": per_partition([0, 1])}]
        talk.call(label, "OffsetDelete", version, groupId=name, topics=topics)

    delete("one that is there, one that is not", group)
    delete("of a topic that is not there", group, talk.name("nowhere"))
    delete("of no group", talk.name("nowhere"))
    request = {"groupId": group, "topics": [{"name": topic, "partitionIndexes": [0, 1]}]}
    talk.call("what is left", "OffsetFetch", 5, **request)


GROUPS: dict[str, Script] = {
    "FindCoordinator": find_coordinator,
    "JoinGroup": join,
    "SyncGroup": sync,
    "Heartbeat": heartbeat,
    "LeaveGroup": leave,
    "OffsetCommit": commit,
    "OffsetFetch": offset_fetch,
    "DescribeGroups": describe,
    "ListGroups": list_groups,
    "DeleteGroups": delete_groups,
    "OffsetDelete": delete_offsets,
}
