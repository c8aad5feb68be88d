"""Classic groups, member by member, and committed offsets."""

from __future__ import annotations

import base64
from typing import Any

from tests.support.waiting import until
from tests.wire.scripts.talk import NOWHERE, Script, Talk, per_partition
from tests.wire.scripts.transactions import Holder

__all__ = ["GROUPS", "joined"]

# Any version of the other APIs that a script needs on its way.
JOIN, SYNC = 5, 3
SUBSCRIPTION, ASSIGNMENT = (base64.b64encode(data).decode() for data in (b"\0\0\0\0\0\0", b"an assignment"))


def coordinator(talk: Talk) -> None:
    """Kafka makes its offsets topic at the first question; every script after that finds it there."""

    def found() -> bool:
        answer = talk.raw.ask("FindCoordinator", 4, coordinatorKeys=["any"], keyType=0)
        return bool(answer["coordinators"][0]["errorCode"] == 0)

    until(found, "the coordinator is there")
    probe = {"groupId": talk.name("probe"), "generationId": 1, "memberId": "nobody"}
    until(lambda: talk.raw.ask("Heartbeat", 0, **probe)["errorCode"] == 25, "the coordinator has loaded")


def join_fields(group: str, member: str = "", **fields: Any) -> dict[str, Any]:
    protocols = [{"name": name, "metadata": SUBSCRIPTION} for name in ("range", "roundrobin")]
    given = {"groupId": group, "memberId": member, "protocolType": "consumer", "protocols": protocols}
    return {"sessionTimeoutMs": 10_000, "rebalanceTimeoutMs": 10_000, **given, **fields}


def joined(talk: Talk, group: str, instance: str | None = None) -> tuple[str, int]:
    """Become the only member of a group that is Stable; gives the member id and generation."""
    coordinator(talk)
    asked = join_fields(group, groupInstanceId=instance)
    answer = talk.raw.ask("JoinGroup", JOIN, **asked)
    if answer["errorCode"] == 79:
        answer = talk.raw.ask("JoinGroup", JOIN, **{**asked, "memberId": answer["memberId"]})
    assert answer["errorCode"] == 0, answer
    member, generation = answer["memberId"], answer["generationId"]
    given = [{"memberId": member, "assignment": ASSIGNMENT}]
    fields = {"groupId": group, "memberId": member, "generationId": generation, "groupInstanceId": instance}
    assert talk.raw.ask("SyncGroup", SYNC, assignments=given, **fields)["errorCode"] == 0
    return member, generation


def find_coordinator(talk: Talk, version: int) -> None:
    coordinator(talk)
    for key in (talk.name("g"), ""):
        asked = {"coordinatorKeys": [key]} if version >= 4 else {"key": key}
        talk.ask(f"of a group {key!r}", "FindCoordinator", version, keyType=0, **asked)
    if version >= 4:
        talk.ask("of two", "FindCoordinator", version, keyType=0, coordinatorKeys=["a", "b"])
    if version >= 1:
        asked = {"coordinatorKeys": ["x"]} if version >= 4 else {"key": "x"}
        Holder(talk)
        talk.ask("of a transaction", "FindCoordinator", version, keyType=1, **asked)
        talk.ask("of no known kind", "FindCoordinator", version, keyType=9, **asked)


def join(talk: Talk, version: int) -> None:
    coordinator(talk)
    group = talk.name("g")
    first = talk.ask("the first", "JoinGroup", version, **join_fields(group))
    member = first["memberId"]
    if first["errorCode"] == 79:
        talk.ask("with the id it was given", "JoinGroup", version, **join_fields(group, member))
    talk.ask("again, before the others know", "JoinGroup", version, **join_fields(group, member))
    talk.ask("with an id that nobody was given", "JoinGroup", version, **join_fields(group, "nobody"))
    talk.ask("without a group", "JoinGroup", version, **join_fields(""))
    short = join_fields(talk.name("other"), sessionTimeoutMs=100)
    talk.ask("with too short a session", "JoinGroup", version, **short)
    long = join_fields(talk.name("other"), sessionTimeoutMs=1_800_001)
    talk.ask("with too long a session", "JoinGroup", version, **long)
    other = join_fields(group, protocolType="connect")
    talk.ask("as another type", "JoinGroup", version, **other)
    nothing = join_fields(talk.name("other"), protocols=[])
    talk.ask("with no protocol", "JoinGroup", version, **nothing)
    stranger = join_fields(group, protocols=[{"name": "zap", "metadata": SUBSCRIPTION}])
    talk.ask("with no protocol in common", "JoinGroup", version, **stranger)
    if version >= 5:
        static = talk.name("static")
        joined(talk, static, "one")
        talk.ask(
            "a static member returns", "JoinGroup", version, **join_fields(static, groupInstanceId="one")
        )


def sync(talk: Talk, version: int) -> None:
    group = talk.name("g")
    member, generation = joined(talk, group)
    good = {"groupId": group, "memberId": member, "generationId": generation, "assignments": []}
    if version >= 5:
        good |= {"protocolType": "consumer", "protocolName": "range"}
    talk.ask("again", "SyncGroup", version, **good)
    talk.ask("of another generation", "SyncGroup", version, **{**good, "generationId": generation + 1})
    talk.ask("of nobody", "SyncGroup", version, **{**good, "memberId": "nobody"})
    talk.ask("of no group", "SyncGroup", version, **{**good, "groupId": talk.name("nowhere")})
    talk.ask("of an empty name", "SyncGroup", version, **{**good, "groupId": ""})
    if version >= 5:
        talk.ask("as another type", "SyncGroup", version, **{**good, "protocolType": "connect"})
        talk.ask("with another protocol", "SyncGroup", version, **{**good, "protocolName": "zap"})


def heartbeat(talk: Talk, version: int) -> None:
    group = talk.name("g")
    member, generation = joined(talk, group)
    good = {"groupId": group, "memberId": member, "generationId": generation}
    talk.ask("of a member", "Heartbeat", version, **good)
    talk.ask("of another generation", "Heartbeat", version, **{**good, "generationId": generation + 1})
    talk.ask("of nobody", "Heartbeat", version, **{**good, "memberId": "nobody"})
    talk.ask("of no group", "Heartbeat", version, **{**good, "groupId": talk.name("nowhere")})
    talk.ask("of an empty name", "Heartbeat", version, **{**good, "groupId": ""})
    if version >= 3:
        talk.ask("of an instance nobody has", "Heartbeat", version, groupInstanceId="x", **good)


def leave(talk: Talk, version: int) -> None:
    group = talk.name("g")
    member, generation = joined(talk, group)

    def go(label: str, who: str, name: str = group, instance: str | None = None) -> None:
        given = (
            {"members": [{"memberId": who, "groupInstanceId": instance}]}
            if version >= 3
            else {"memberId": who}
        )
        talk.ask(label, "LeaveGroup", version, groupId=name, **given)

    go("nobody", "nobody")
    go("no group", member, talk.name("nowhere"))
    go("a member", member)
    go("the same again", member)
    asked = {"groupId": group, "memberId": member, "generationId": generation}
    talk.ask("its heartbeat after that", "Heartbeat", 3, **asked)
    if version >= 3:
        static = talk.name("static")
        joined(talk, static, "one")
        go("an instance", "", static, "one")
        go("an instance nobody has", "", static, "two")


def commit_fields(talk: Talk, topic: str, offset: int = 5, index: int = 0) -> list[dict[str, Any]]:
    place = {"name": topic, "topicId": talk.ids.get(topic, NOWHERE)}
    return [{**place, "partitions": per_partition([index], committedOffset=offset, committedMetadata="note")}]


def commit(talk: Talk, version: int) -> None:
    topic, group = talk.topic("t"), talk.name("g")
    member, generation = joined(talk, group)

    def put(label: str, **fields: Any) -> None:
        given = {"groupId": group, "memberId": member, "generationIdOrMemberEpoch": generation}
        asked = {**given, "topics": commit_fields(talk, topic), **fields}
        talk.ask(label, "OffsetCommit", version, **asked)

    put("of a member")
    put("of another generation", generationIdOrMemberEpoch=generation + 1)
    put("of nobody", memberId="nobody")
    put("from outside a group that has members", generationIdOrMemberEpoch=-1, memberId="")
    put("without members", groupId=talk.name("plain"), generationIdOrMemberEpoch=-1, memberId="")
    put("of a generation that never was", groupId=talk.name("never"), generationIdOrMemberEpoch=3)
    put("of a topic that is not there", topics=commit_fields(talk, talk.name("nowhere")))
    put("of a partition that is not there", topics=commit_fields(talk, topic, index=4))
    long = commit_fields(talk, topic)
    long[0]["partitions"][0]["committedMetadata"] = "x" * 5000
    put("with a long note", topics=long)
    asked = {"groupId": group, "topics": [{"name": topic, "partitionIndexes": [0]}]}
    talk.ask("what stands", "OffsetFetch", 5, **asked)


def offset_fetch(talk: Talk, version: int) -> None:
    topic, group = talk.topic("t", 2), talk.name("g")
    coordinator(talk)
    fields = {"groupId": group, "generationIdOrMemberEpoch": -1, "memberId": ""}
    talk.ask("commit", "OffsetCommit", 8, topics=commit_fields(talk, topic), **fields)

    def get(label: str, name: str, *indexes: int, of: str = topic) -> None:
        place: dict[str, Any] = {"name": of, "partitionIndexes": list(indexes)}
        if version >= 8:
            place["topicId"] = talk.ids.get(of, NOWHERE)
        topics = [place] if indexes else None
        given: dict[str, Any] = {"groupId": name, "topics": topics}
        if version >= 8:
            given = {"groups": [given]}
        talk.ask(label, "OffsetFetch", version, **given)

    get("both partitions", group, 0, 1)
    if version >= 2:
        get("everything", group)
        get("everything of no group", talk.name("nowhere"))
    get("of no group", talk.name("nowhere"), 0)
    get("of a topic that is not there", group, 0, of=talk.name("nowhere"))


def describe(talk: Talk, version: int) -> None:
    group = talk.name("g")
    member, _ = joined(talk, group)
    coordinator(talk)
    topic = talk.topic("t")
    fields = {"generationIdOrMemberEpoch": -1, "memberId": "", "topics": commit_fields(talk, topic)}
    talk.raw.ask("OffsetCommit", 8, groupId=talk.name("plain"), **fields)
    for name in (group, talk.name("plain"), talk.name("nowhere")):
        talk.ask(f"of {name}", "DescribeGroups", version, groups=[name])
    if version >= 3:
        talk.ask(
            "what one may do", "DescribeGroups", version, groups=[group], includeAuthorizedOperations=True
        )
    talk.raw.ask("LeaveGroup", 3, groupId=group, members=[{"memberId": member}])
    talk.ask("after its last member has left", "DescribeGroups", version, groups=[group])


def list_groups(talk: Talk, version: int) -> None:
    group, plain = talk.name("g"), talk.name("plain")
    joined(talk, group)
    topic = talk.topic("t")
    fields = {"generationIdOrMemberEpoch": -1, "memberId": "", "topics": commit_fields(talk, topic)}
    talk.raw.ask("OffsetCommit", 8, groupId=plain, **fields)

    def look(label: str, **filters: Any) -> None:
        answer = talk.raw.ask("ListGroups", version, **filters)
        # Other tests' groups are on these servers too.
        found = [one for one in answer["groups"] if one["groupId"] in (group, plain)]
        talk.notes.append((label, (answer["errorCode"], talk.plain({"groups": found}))))

    look("all")
    look("all, once more")
    if version >= 4:
        look("stable ones", statesFilter=["Stable"])
        look("empty ones, in small letters", statesFilter=["empty"])
        look("no known state", statesFilter=["Zap"])
    if version >= 5:
        look("classic ones", typesFilter=["classic"])
        look("no known type", typesFilter=["zap"])


def delete_groups(talk: Talk, version: int) -> None:
    group, plain, topic = talk.name("g"), talk.name("plain"), talk.topic("t")
    joined(talk, group)
    fields = {"generationIdOrMemberEpoch": -1, "memberId": "", "topics": commit_fields(talk, topic)}
    talk.raw.ask("OffsetCommit", 8, groupId=plain, **fields)
    names = [group, plain, talk.name("nowhere")]
    talk.ask("one with members, one without, one that is none", "DeleteGroups", version, groupsNames=names)
    talk.ask("again", "DeleteGroups", version, groupsNames=[plain])
    asked = {"groupId": plain, "topics": [{"name": topic, "partitionIndexes": [0]}]}
    talk.ask("its offsets after that", "OffsetFetch", 5, **asked)


def delete_offsets(talk: Talk, version: int) -> None:
    group, topic = talk.name("g"), talk.topic("t", 2)
    coordinator(talk)
    fields = {"generationIdOrMemberEpoch": -1, "memberId": "", "topics": commit_fields(talk, topic)}
    talk.raw.ask("OffsetCommit", 8, groupId=group, **fields)

    def delete(label: str, name: str, of: str = topic) -> None:
        topics = [{"name": of, "partitions": per_partition([0, 1])}]
        talk.ask(label, "OffsetDelete", version, groupId=name, topics=topics)

    delete("one that is there, one that is not", group)
    delete("of a topic that is not there", group, talk.name("nowhere"))
    delete("of no group", talk.name("nowhere"))
    asked = {"groupId": group, "topics": [{"name": topic, "partitionIndexes": [0, 1]}]}
    talk.ask("what is left", "OffsetFetch", 5, **asked)


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
