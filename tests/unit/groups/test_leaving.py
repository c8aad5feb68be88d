"""How members leave, by themselves or by an administrator."""

from __future__ import annotations

from headrace.broker.groups import LeaveAsk
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, assemble, form, settle


async def test_the_others_rebalance_when_a_member_leaves() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first, second)
        assert await second.leave() == [ErrorCode.NONE]
        assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        answer = await first.join()
        assert [member_id for member_id, _, _ in answer.members] == [first.member_id]


async def test_the_group_is_empty_when_the_last_has_left_and_its_generation_has_moved_on() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        await client.leave()
        described = rig.groups.describe("g")
        assert described is not None
        assert (described.state, described.members, described.protocol_type) == ("Empty", (), "consumer")
        again = Client(rig)
        await again.join()
        assert again.generation == 3


async def test_leaving_is_durable_before_it_is_answered() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        rig.journal.hold()
        leaving = rig.park(client.leave())
        await settle()
        assert not leaving.done()
        rig.journal.release()
        assert await leaving == [ErrorCode.NONE]
        await rig.crash()
        assert rig.state() == "Empty"


async def test_leaving_is_refused_when_it_cannot_be_made_durable() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        rig.journal.fails = True
        assert await client.leave() is ErrorCode.NOT_COORDINATOR


async def test_each_of_a_batch_has_its_own_error() -> None:
    async with Rig() as rig:
        dynamic, static = Client(rig), Client(rig, instance_id="one")
        pending = Client(rig)
        await form(dynamic, static)
        await pending.join_once()
        errors = await rig.groups.leave(
            "g",
            [
                LeaveAsk(dynamic.member_id),
                LeaveAsk("stranger"),
                LeaveAsk("stranger", "one"),
                LeaveAsk(static.member_id, "two"),
                LeaveAsk(static.member_id, "one"),
                LeaveAsk(pending.member_id),
                LeaveAsk(""),
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
        await form(member)
        await pending.join_once()
        assert await pending.leave() == [ErrorCode.NONE]
        assert member.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert (await pending.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await member.join()).generation == 2


async def test_a_pending_id_that_leaves_is_no_longer_waited_for() -> None:
    async with Rig() as rig:
        member, pending = Client(rig), Client(rig)
        await form(member)
        await pending.join_once()
        joining = member.joining()
        await settle()
        assert not joining.done()
        await pending.leave()
        assert (await joining).error is ErrorCode.NONE


async def test_requests_that_a_removed_member_had_parked_are_answered() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await assemble(first, second)
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


async def test_a_leader_that_leaves_is_followed_by_another() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        await leader.leave()
        assert (await follower.join()).leader == follower.member_id


async def test_leaving_a_group_that_is_not_there() -> None:
    async with Rig() as rig:
        assert (
            await rig.groups.leave("g", [LeaveAsk("a"), LeaveAsk("b")]) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
        )
        assert await rig.groups.leave("", [LeaveAsk("a")]) is ErrorCode.INVALID_GROUP_ID
