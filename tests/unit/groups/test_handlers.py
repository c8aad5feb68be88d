"""The group APIs as clients see them: the tests encode requests, and decode responses, in every version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.event_loop import Turns
from headrace.broker.handlers import HANDLERS
from headrace.broker.limits import BrokerLimits
from headrace.broker.net.client_limits import Notices
from headrace.broker.net.request import Request
from headrace.wire import Api, decode, encode, versions
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form_group, subscription

ORDERS_ID = b"orders".ljust(16, b"\0")
UNKNOWN_TOPIC_ID = b"nobody".ljust(16, b"\0")


async def call(rig: Rig, api: Api, version: int, message: Any) -> Any:
    """Encode the request and decode the response in this version."""
    request = decode(type(message), version, encode(message, version), 0)
    broker: Any = SimpleNamespace(
        groups=rig.groups, limits=BrokerLimits(), notices=Notices(rig.clock), turns=Turns()
    )
    answer = await HANDLERS[api](broker, Request(api, version, 1, "app", request, "127.0.0.1"))
    return decode(type(answer), version, encode(answer, version), 0)


def every_version(api: Api) -> pytest.MarkDecorator:
    first, last = versions(api)
    return pytest.mark.parametrize("version", range(first, last + 1))


def join_request(version: int, member_id: str = "", **fields: Any) -> Any:
    return m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[
            m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))
        ],
        **({"rebalance_timeout_ms": 60_000} if version >= 1 else {}),
        **fields,
    )


@every_version(Api.JOIN_GROUP)
async def test_join_group(version: int) -> None:
    async with Rig() as rig:
        answer = await call(rig, Api.JOIN_GROUP, version, join_request(version))
        if version >= 4:
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            assert answer.protocol_name == (None if version >= 7 else "")
            answer = await call(rig, Api.JOIN_GROUP, version, join_request(version, answer.member_id))
        assert answer.error_code == ErrorCode.NONE
        assert answer.generation_id == 1
        assert answer.protocol_name == "range"
        assert answer.protocol_type == ("consumer" if version >= 7 else None)
        assert answer.leader == answer.member_id
        assert answer.member_id.startswith("app-")
        (member,) = answer.members
        assert (member.member_id, member.metadata) == (answer.member_id, subscription("orders"))
        described = rig.groups.describe("g")
        assert described is not None
        assert described.members[0].client_host == "/127.0.0.1"


async def test_join_group_v0_uses_the_session_timeout_as_rebalance_timeout() -> None:
    async with Rig() as rig:
        first = await call(rig, Api.JOIN_GROUP, 0, join_request(0))
        waiting = rig.start_request(call(rig, Api.JOIN_GROUP, 0, join_request(0)))
        for _ in range(9):
            await rig.advance(1)
            rig.groups.heartbeat("g", first.member_id, None, 1)
        assert not waiting.done()
        await rig.advance(2)
        assert (await waiting).error_code == ErrorCode.NONE


async def test_the_join_response_of_a_returning_static_leader_sets_skip_assignment() -> None:
    async with Rig() as rig:
        await form_group(Client(rig, instance_id="one"))
        answer = await call(rig, Api.JOIN_GROUP, 9, join_request(9, group_instance_id="one"))
        assert answer.skip_assignment
        assert [member.group_instance_id for member in answer.members] == ["one"]


@every_version(Api.SYNC_GROUP)
async def test_sync_group(version: int) -> None:
    async with Rig() as rig:
        client = Client(rig)
        await client.join()
        assignment = m.SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=client.member_id, assignment=b"all"
        )
        request = m.SyncGroupRequest(
            group_id="g", generation_id=1, member_id=client.member_id, assignments=[assignment]
        )
        if version >= 5:
            answer = await call(rig, Api.SYNC_GROUP, version, request)
            assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL, (
                "from version 5 on, the protocol type and the protocol name are required"
            )
            request.protocol_type, request.protocol_name = "consumer", "range"
        answer = await call(rig, Api.SYNC_GROUP, version, request)
        assert answer.error_code == ErrorCode.NONE
        assert answer.assignment == b"all"
        assert answer.protocol_name == ("range" if version >= 5 else None)


@every_version(Api.HEARTBEAT)
async def test_heartbeat(version: int) -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        request = m.HeartbeatRequest(group_id="g", generation_id=1, member_id=client.member_id)
        assert (await call(rig, Api.HEARTBEAT, version, request)).error_code == ErrorCode.NONE
        request.generation_id = 2
        assert (await call(rig, Api.HEARTBEAT, version, request)).error_code == ErrorCode.ILLEGAL_GENERATION


@every_version(Api.LEAVE_GROUP)
async def test_leave_group(version: int) -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        if version < 3:
            request = m.LeaveGroupRequest(group_id="g", member_id=client.member_id)
            assert (await call(rig, Api.LEAVE_GROUP, version, request)).error_code == ErrorCode.NONE
            assert (
                await call(rig, Api.LEAVE_GROUP, version, request)
            ).error_code == ErrorCode.UNKNOWN_MEMBER_ID
            return
        identity = m.LeaveGroupRequest.MemberIdentity
        request = m.LeaveGroupRequest(
            group_id="g", members=[identity(member_id=client.member_id), identity(member_id="other")]
        )
        answer = await call(rig, Api.LEAVE_GROUP, version, request)
        assert answer.error_code == ErrorCode.NONE
        assert [(member.member_id, member.error_code) for member in answer.members] == [
            (client.member_id, ErrorCode.NONE),
            ("other", ErrorCode.UNKNOWN_MEMBER_ID),
        ]
        request = m.LeaveGroupRequest(group_id="", members=[identity(member_id="other")])
        assert (await call(rig, Api.LEAVE_GROUP, version, request)).error_code == ErrorCode.INVALID_GROUP_ID


def commit_request(version: int, **fields: Any) -> Any:
    topic_of = m.OffsetCommitRequest.OffsetCommitRequestTopic
    partition_of = m.OffsetCommitRequest.OffsetCommitRequestPartition

    def topic(name: str, topic_id: bytes, partitions: list[Any]) -> Any:
        if version >= 10:
            return topic_of(topic_id=topic_id, partitions=partitions)
        return topic_of(name=name, partitions=partitions)

    epoch = {"committed_leader_epoch": 4} if version >= 6 else {}
    return m.OffsetCommitRequest(
        group_id="g",
        topics=[
            topic("nothing", UNKNOWN_TOPIC_ID, [partition_of(partition_index=0, committed_offset=1)]),
            topic(
                "orders",
                ORDERS_ID,
                [
                    partition_of(partition_index=1, committed_offset=17, committed_metadata="here", **epoch),
                    partition_of(partition_index=99, committed_offset=18, committed_metadata=None),
                ],
            ),
        ],
        **fields,
    )


@every_version(Api.OFFSET_COMMIT)
async def test_offset_commit(version: int) -> None:
    async with Rig() as rig:
        answer = await call(rig, Api.OFFSET_COMMIT, version, commit_request(version))
        missing, orders = answer.topics
        if version >= 10:
            assert (missing.topic_id, orders.topic_id) == (UNKNOWN_TOPIC_ID, ORDERS_ID)
        else:
            assert (missing.name, orders.name) == ("nothing", "orders")
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [partition.error_code for partition in missing.partitions] == [unknown]
        assert [(partition.partition_index, partition.error_code) for partition in orders.partitions] == [
            (1, ErrorCode.NONE),
            (99, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        row = rig.groups.fetch("g", "orders", 1)
        assert row is not None
        assert (row.offset, row.metadata, row.leader_epoch) == (17, "here", 4 if version >= 6 else -1)

        request = commit_request(version, generation_id_or_member_epoch=3, member_id="m")
        request.group_id = "other"
        answer = await call(rig, Api.OFFSET_COMMIT, version, request)
        refused = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        assert answer.topics[1].partitions[0].error_code == refused


async def test_offset_commit_applies_the_retention_time_of_old_request_versions() -> None:
    async with Rig() as rig:
        await call(rig, Api.OFFSET_COMMIT, 4, commit_request(4, retention_time_ms=5_000))
        assert len(await rig.groups.expire(rig.clock.wall_ms + 5_000)) == 1


@every_version(Api.OFFSET_FETCH)
async def test_offset_fetch(version: int) -> None:
    async with Rig() as rig:
        await rig.groups.commit("g", [("orders", 1, 17, 4, "here")])
        if version < 8:
            topic = m.OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])
            request = m.OffsetFetchRequest(group_id="g", topics=[topic])
            answer = await call(rig, Api.OFFSET_FETCH, version, request)
            assert answer.error_code == ErrorCode.NONE
            (topic,) = answer.topics
        else:
            topic_of = m.OffsetFetchRequest.OffsetFetchRequestTopics
            named = {"topic_id": ORDERS_ID} if version >= 10 else {"name": "orders"}
            group = m.OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id="g", topics=[topic_of(partition_indexes=[0, 1], **named)]
            )
            answer = await call(rig, Api.OFFSET_FETCH, version, m.OffsetFetchRequest(groups=[group]))
            (group,) = answer.groups
            assert (group.group_id, group.error_code) == ("g", ErrorCode.NONE)
            (topic,) = group.topics
            assert topic.topic_id == (ORDERS_ID if version >= 10 else bytes(16))
        assert topic.name == ("orders" if version < 10 else "")
        uncommitted, existing = topic.partitions
        assert (uncommitted.partition_index, uncommitted.committed_offset, uncommitted.metadata) == (
            0,
            -1,
            "",
        )
        assert (existing.partition_index, existing.committed_offset, existing.metadata) == (1, 17, "here")
        assert {uncommitted.error_code, existing.error_code} == {ErrorCode.NONE}
        if version >= 5:
            assert (uncommitted.committed_leader_epoch, existing.committed_leader_epoch) == (-1, 4)


@pytest.mark.parametrize("version", range(2, 11))
async def test_offset_fetch_of_all_topics(version: int) -> None:
    async with Rig() as rig:
        await rig.groups.commit("g", [("orders", 1, 17, 4, "here"), ("payments", 0, 3, -1, None)])
        if version < 8:
            answer = await call(
                rig, Api.OFFSET_FETCH, version, m.OffsetFetchRequest(group_id="g", topics=None)
            )
            topics = answer.topics
        else:
            group_of = m.OffsetFetchRequest.OffsetFetchRequestGroup
            request = m.OffsetFetchRequest(
                groups=[group_of(group_id="g", topics=None), group_of(group_id="other", topics=None)]
            )
            answer = await call(rig, Api.OFFSET_FETCH, version, request)
            assert [group.group_id for group in answer.groups] == ["g", "other"]
            assert answer.groups[1].topics == []
            topics = answer.groups[0].topics
        rows_found = {
            (topic.topic_id.rstrip(b"\0").decode() if version >= 10 else topic.name, each.partition_index): (
                each.committed_offset
            )
            for topic in topics
            for each in topic.partitions
        }
        assert rows_found == {("orders", 1): 17, ("payments", 0): 3}


async def test_offset_fetch_by_an_unknown_id_is_an_error() -> None:
    async with Rig() as rig:
        topic = m.OffsetFetchRequest.OffsetFetchRequestTopics(
            topic_id=UNKNOWN_TOPIC_ID, partition_indexes=[0]
        )
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[topic])
        answer = await call(rig, Api.OFFSET_FETCH, 10, m.OffsetFetchRequest(groups=[group]))
        (partition,) = answer.groups[0].topics[0].partitions
        assert (partition.error_code, partition.committed_offset) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)


async def test_offset_fetch_by_id_omits_deleted_topics() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        del rig.topics.partitions["orders"]
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
        answer = await call(rig, Api.OFFSET_FETCH, 10, m.OffsetFetchRequest(groups=[group]))
        assert answer.groups[0].topics == []


async def test_offset_delete() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        topic_of = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
        partition_of = m.OffsetDeleteRequest.OffsetDeleteRequestPartition
        request = m.OffsetDeleteRequest(
            group_id="g",
            topics=[
                topic_of(name="orders", partitions=[partition_of(partition_index=0)]),
                topic_of(name="nothing", partitions=[partition_of(partition_index=7)]),
            ],
        )
        answer = await call(rig, Api.OFFSET_DELETE, 0, request)
        assert answer.error_code == ErrorCode.NONE
        assert [
            (topic.name, partition.partition_index, partition.error_code)
            for topic in answer.topics
            for partition in topic.partitions
        ] == [("orders", 0, ErrorCode.NONE), ("nothing", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert rig.committed() is None
        request.group_id = "other"
        answer = await call(rig, Api.OFFSET_DELETE, 0, request)
        assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


@every_version(Api.LIST_GROUPS)
async def test_list_groups(version: int) -> None:
    async with Rig() as rig:
        await form_group(Client(rig))
        await rig.commit(1, group_id="offsets")
        filters: dict[str, Any] = {}
        if version >= 4:
            filters["states_filter"] = ["stable"]
        if version >= 5:
            filters["types_filter"] = ["classic"]
        answer = await call(rig, Api.LIST_GROUPS, version, m.ListGroupsRequest(**filters))
        assert answer.error_code == ErrorCode.NONE
        groups = {group.group_id: group for group in answer.groups}
        assert set(groups) == ({"g"} if version >= 4 else {"g", "offsets"})
        assert groups["g"].protocol_type == "consumer"
        assert groups["g"].group_state == ("Stable" if version >= 4 else "")
        assert groups["g"].group_type == ("classic" if version >= 5 else "")


@every_version(Api.DESCRIBE_GROUPS)
async def test_describe_groups(version: int) -> None:
    async with Rig() as rig:
        client = Client(rig, instance_id="one")
        await form_group(client)
        request = m.DescribeGroupsRequest(groups=["g", "nothing"])
        if version >= 3:
            request.include_authorized_operations = True
        answer = await call(rig, Api.DESCRIBE_GROUPS, version, request)
        existing, missing = answer.groups
        assert (existing.error_code, existing.group_state) == (ErrorCode.NONE, "Stable")
        assert (existing.protocol_type, existing.protocol_data) == ("consumer", "range")
        (member,) = existing.members
        assert (member.member_id, member.client_id, member.client_host) == (
            client.member_id,
            "app",
            "/127.0.0.1",
        )
        assert member.group_instance_id == ("one" if version >= 4 else None)
        assert member.member_metadata == subscription("orders")
        assert member.member_assignment == client.member_id.encode()
        assert existing.authorized_operations == (3400 if version >= 3 else -(2**31))
        assert (missing.group_id, missing.group_state, missing.members) == ("nothing", "Dead", [])
        if version >= 6:
            assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert missing.error_message == "Group nothing not found."
        else:
            assert missing.error_code == ErrorCode.NONE


async def test_describe_groups_sends_operations_only_on_request() -> None:
    async with Rig() as rig:
        await form_group(Client(rig))
        answer = await call(rig, Api.DESCRIBE_GROUPS, 6, m.DescribeGroupsRequest(groups=["g"]))
        assert answer.groups[0].authorized_operations == -(2**31)


@every_version(Api.DELETE_GROUPS)
async def test_delete_groups(version: int) -> None:
    async with Rig() as rig:
        await form_group(Client(rig))
        await rig.commit(1, group_id="offsets")
        request = m.DeleteGroupsRequest(groups_names=["g", "offsets", "nothing", "offsets"])
        answer = await call(rig, Api.DELETE_GROUPS, version, request)
        assert [(result.group_id, result.error_code) for result in answer.results] == [
            ("g", ErrorCode.NON_EMPTY_GROUP),
            ("offsets", ErrorCode.NONE),
            ("nothing", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
