"""Leaving a group, and removal by an administrator."""

from __future__ import annotations

from headrace.broker.groups import LeavingMember
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form_group, join_all, settle


async def test_the_others_rebalance_when_a_member_leaves() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first, second)
        assert await second.leave() == [ErrorCode.NONE]
        assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        answer = await first.join()
        assert [member_id for member_id, _, _ in answer.members] == [first.member_id]


async def test_when_the_last_member_leaves_the_group_is_empty_and_has_a_new_generation() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.leave()
        described = rig.groups.describe("g")
        assert described is not None
        assert (described.state, described.members, described.protocol_type) == ("Empty", (), "consumer")
        again = Client(rig)
        await again.join()
        assert again.generation == 3


async def test_leaving_is_durable_before_its_response() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        rig.journal.hold()
        leaving = rig.start_request(client.leave())
        await settle()
        assert not leaving.done()
        rig.journal.release()
        assert await leaving == [ErrorCode.NONE]
        await rig.crash()
        assert rig.state() == "Empty"


async def test_leaving_fails_if_the_journal_fails() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        rig.journal.fails = True
        assert await client.leave() is ErrorCode.NOT_COORDINATOR


async def test_each_member_of_a_leave_request_has_its_own_error() -> None:
    async with Rig() as rig:
        dynamic, static = Client(rig), Client(rig, instance_id="one")
        pending = Client(rig)
        await form_group(dynamic, static)
        await pending.join_once()
        errors = await rig.groups.leave(
            "g",
            [
                LeavingMember(dynamic.member_id),
                LeavingMember("stranger"),
                LeavingMember("stranger", "one"),
                LeavingMember(static.member_id, "two"),
                LeavingMember(static.member_id, "one"),
                LeavingMember(pending.member_id),
                LeavingMember(""),
            ],
        )
        assert errors == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ]
        assert rig.state() == "Empty"


async def test_a_pending_id_that_leaves_is_forgotten_and_starts_a_rebalance_as_in_kafka() -> None:
    async with Rig() as rig:
        member, pending = Client(rig), Client(rig)
        await form_group(member)
        await pending.join_once()
        assert await pending.leave() == [ErrorCode.NONE]
        assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert (await pending.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await member.join()).generation == 2


async def test_a_rebalance_does_not_wait_for_a_pending_member_id_that_left() -> None:
    async with Rig() as rig:
        member, pending = Client(rig), Client(rig)
        await form_group(member)
        await pending.join_once()
        joining = member.joining()
        await settle()
        assert not joining.done()
        await pending.leave()
        assert (await joining).error is ErrorCode.NONE


async def test_parked_requests_of_a_removed_member_get_an_error() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await join_all(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        syncing = follower.syncing()
        await settle()
        await follower.leave()
        assert (await syncing).error is ErrorCode.UNKNOWN_MEMBER_ID

        await leader.join()
        third = Client(rig)
        joining = third.joining()
        await settle()
        await third.leave()
        assert (await joining).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_another_member_leads_after_the_leader_leaves() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        await leader.leave()
        assert (await follower.join()).leader == follower.member_id


async def test_leaving_an_unknown_group_is_an_error() -> None:
    async with Rig() as rig:
        assert (
            await rig.groups.leave("g", [LeavingMember("a"), LeavingMember("b")])
            == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
        )
        assert await rig.groups.leave("", [LeavingMember("a")]) is ErrorCode.INVALID_GROUP_ID
