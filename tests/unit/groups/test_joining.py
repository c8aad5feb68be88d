"""How a group comes together."""

from __future__ import annotations

import re

from headrace.broker.groups import GroupSettings
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, assemble, form, settle, subscription


async def test_a_new_member_is_sent_back_to_join_with_the_id_it_is_given() -> None:
    async with Rig() as rig:
        client = Client(rig, client_id="app")
        answer = await client.join_once()
        assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
        assert re.fullmatch(r"app-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", answer.member_id)
        assert answer.generation == -1
        assert rig.state() == "Empty"

        second = await client.join_once()
        assert second.error is ErrorCode.NONE
        assert second.member_id == answer.member_id


async def test_before_version_4_a_member_is_added_at_once() -> None:
    async with Rig() as rig:
        answer = await Client(rig, version=3).join_once()
        assert answer.error is ErrorCode.NONE
        assert answer.generation == 1
        assert answer.member_id.startswith("app-")


async def test_the_first_member_leads_and_is_told_of_all_members() -> None:
    async with Rig() as rig:
        client = Client(rig)
        answer = await client.join()
        assert answer.leader == answer.member_id == client.member_id
        assert answer.generation == 1
        assert answer.protocol == "range"
        assert answer.protocol_type == "consumer"
        assert answer.members == ((client.member_id, None, subscription("orders")),)
        assert not answer.skip_assignment
        assert rig.state() == "CompletingRebalance"


async def test_followers_are_not_told_of_the_others() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first, second)
        assert first.answer.leader == second.answer.leader
        leader, follower = (first, second) if first.leads else (second, first)
        assert {member_id for member_id, _, _ in leader.answer.members} == {first.member_id, second.member_id}
        assert follower.answer.members == ()


async def test_a_second_member_waits_until_the_first_has_rejoined() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first)
        joining = second.joining()
        await settle()
        assert not joining.done()
        assert rig.state() == "PreparingRebalance"
        assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS

        await first.join()
        assert (await joining).generation == first.generation == 2


async def test_whoever_does_not_rejoin_within_the_rebalance_timeout_is_out() -> None:
    async with Rig() as rig:
        first, second = Client(rig, rebalance_timeout_ms=20_000), Client(rig, rebalance_timeout_ms=20_000)
        await form(first)
        joining = second.joining()
        for _ in range(19):
            await rig.advance(1)
            assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert not joining.done()
        await rig.advance(2)
        answer = await joining
        assert [member_id for member_id, _, _ in answer.members] == [second.member_id]
        assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_longest_rebalance_timeout_of_the_members_counts() -> None:
    async with Rig() as rig:
        first, second = Client(rig, rebalance_timeout_ms=40_000), Client(rig, rebalance_timeout_ms=8_000)
        await form(first)
        joining = second.joining()
        for _ in range(39):
            await rig.advance(1)
            first.heartbeat()
        assert not joining.done()
        await rig.advance(2)
        assert (await joining).error is ErrorCode.NONE


async def test_a_leader_that_does_not_rejoin_is_replaced_by_one_who_has() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        third = Client(rig)
        joins = [third.joining()]
        await settle()
        joins.append(follower.joining())
        for _ in range(61):
            await rig.advance(1)
            leader.heartbeat()
        answers = [await join for join in joins]
        assert {answer.error for answer in answers} == {ErrorCode.NONE}
        assert answers[0].leader in (follower.member_id, third.member_id)


async def test_a_pending_id_holds_up_the_rebalance_until_it_is_used_or_forgotten() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig, session_timeout_ms=15_000)
        await form(first)
        await second.join_once()
        rejoining = rig.park(first.join())
        await settle()
        assert not rejoining.done()
        await rig.advance(14)
        assert not rejoining.done()
        await rig.advance(2)
        assert (await rejoining).error is ErrorCode.NONE
        assert (await second.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_an_id_that_was_given_out_is_good_for_one_session_timeout() -> None:
    async with Rig() as rig:
        client = Client(rig, session_timeout_ms=10_000)
        await client.join_once()
        await rig.advance(11)
        assert (await client.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_first_rebalance_waits_for_more_members_as_long_as_they_come() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=3_000)
    async with Rig(settings) as rig:
        first, second, third = Client(rig), Client(rig), Client(rig)
        joins = [first.joining()]
        await rig.advance(2)
        joins.append(second.joining())
        await rig.advance(2)
        assert not joins[0].done()
        joins.append(third.joining())
        await rig.advance(3)
        assert not joins[0].done()
        await rig.advance(3)
        answers = [await join for join in joins]
        assert {answer.generation for answer in answers} == {1}
        assert max(len(answer.members) for answer in answers) == 3


async def test_the_first_rebalance_waits_no_longer_than_the_rebalance_timeout() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=3_000)
    async with Rig(settings) as rig:
        joins = [Client(rig, rebalance_timeout_ms=7_000).joining()]
        for _ in range(6):
            await rig.advance(1)
            joins.append(Client(rig, rebalance_timeout_ms=7_000).joining())
        await rig.advance(0.5)
        assert not any(join.done() for join in joins)
        await rig.advance(0.5)
        answers = [await join for join in joins]
        assert {answer.error for answer in answers} == {ErrorCode.NONE}
        assert max(len(answer.members) for answer in answers) == 7


async def test_without_new_members_the_first_rebalance_ends_after_one_delay() -> None:
    async with Rig(GroupSettings(initial_rebalance_delay_ms=3_000)) as rig:
        joining = Client(rig).joining()
        await rig.advance(2.5)
        assert not joining.done()
        await rig.advance(0.5)
        assert (await joining).generation == 1


async def test_the_protocol_with_the_most_votes_among_those_all_support_wins() -> None:
    async with Rig() as rig:
        both = (("sticky", b"s"), ("range", b"r"))
        clients = [
            Client(rig, protocols=(("range", b"1"), ("sticky", b"1"))),
            Client(rig, protocols=both),
            Client(rig, protocols=(("cooperative", b"3"), *both)),
        ]
        await form(*clients)
        assert {client.answer.protocol for client in clients} == {"sticky"}
        leader = next(client for client in clients if client.leads)
        assert sorted(metadata for _, _, metadata in leader.answer.members) == [b"1", b"s", b"s"]


async def test_a_member_without_a_protocol_in_common_is_refused() -> None:
    async with Rig() as rig:
        first = Client(rig, protocols=(("range", b""),))
        await form(first)
        second = Client(rig, protocols=(("sticky", b""),))
        assert (await second.join_once()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert first.heartbeat() is ErrorCode.NONE


async def test_a_member_of_another_protocol_type_is_refused() -> None:
    async with Rig() as rig:
        await form(Client(rig))
        answer = await Client(rig, protocol_type="connect").join_once()
        assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_protocols_and_their_type_must_be_given() -> None:
    async with Rig() as rig:
        assert (await Client(rig, protocols=()).join_once()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (
            await Client(rig, protocol_type="").join_once()
        ).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert rig.groups.list_groups() == []


async def test_an_empty_group_takes_any_protocol_type() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        await client.leave()
        await form(Client(rig, protocol_type="connect", protocols=(("eager", b""),)))
        described = rig.groups.describe("g")
        assert described is not None
        assert described.protocol_type == "connect"


async def test_session_timeouts_outside_the_limits_are_refused() -> None:
    async with Rig() as rig:
        for timeout_ms, error in (
            (5_999, ErrorCode.INVALID_SESSION_TIMEOUT),
            (6_000, ErrorCode.MEMBER_ID_REQUIRED),
            (1_800_000, ErrorCode.MEMBER_ID_REQUIRED),
            (1_800_001, ErrorCode.INVALID_SESSION_TIMEOUT),
        ):
            assert (await Client(rig, session_timeout_ms=timeout_ms).join_once()).error is error


async def test_the_group_id_must_not_be_empty() -> None:
    async with Rig() as rig:
        assert (await Client(rig, group_id="").join_once()).error is ErrorCode.INVALID_GROUP_ID


async def test_a_member_id_that_nobody_gave_out_is_refused() -> None:
    async with Rig() as rig:
        stranger = Client(rig, member_id="app-00000000-0000-0000-0000-000000000000")
        assert (await stranger.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert rig.groups.list_groups() == []
        await form(Client(rig))
        assert (await stranger.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_follower_that_rejoins_without_news_gets_the_same_generation_back() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first, second)
        follower = second if first.leads else first
        generation = follower.generation
        answer = await follower.join()
        assert answer.generation == generation
        assert answer.members == ()
        assert rig.state() == "Stable"


async def test_a_leader_that_rejoins_starts_a_rebalance() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        joining = leader.joining()
        await settle()
        assert rig.state() == "PreparingRebalance"
        assert follower.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        await follower.join()
        assert (await joining).generation == follower.generation == 3


async def test_a_follower_with_a_new_subscription_starts_a_rebalance() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        follower.protocols = (("range", subscription("orders", "payments")),)
        joining = follower.joining()
        await settle()
        assert rig.state() == "PreparingRebalance"
        answer = await leader.join()
        assert (follower.member_id, None, subscription("orders", "payments")) in answer.members
        await joining


async def test_a_member_whose_answer_was_lost_gets_it_again() -> None:
    async with Rig() as rig:
        client = Client(rig)
        first = await client.join()
        assert await client.join() == first


async def test_a_new_subscription_while_assignments_are_made_starts_over() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await assemble(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        follower_sync = follower.syncing()
        await settle()
        leader.protocols = (("range", subscription("payments")),)
        joining = leader.joining()
        assert (await follower_sync).error is ErrorCode.REBALANCE_IN_PROGRESS
        await follower.join()
        assert (await joining).error is ErrorCode.NONE


async def test_a_join_that_its_client_gave_up_on_is_let_go_when_it_comes_again() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first)
        abandoned = second.joining()
        await settle()
        again = second.joining()
        assert (await abandoned).error is ErrorCode.REBALANCE_IN_PROGRESS
        await first.join()
        assert (await again).error is ErrorCode.NONE


async def test_a_group_takes_no_more_than_its_most() -> None:
    async with Rig(GroupSettings(members_per_group_max=2)) as rig:
        first, second, third = Client(rig), Client(rig), Client(rig)
        await form(first, second)
        answer = await third.join()
        assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert answer.member_id == ""
        assert first.heartbeat() is ErrorCode.NONE


async def test_the_most_counts_those_who_have_joined_while_a_rebalance_is_prepared() -> None:
    async with Rig(GroupSettings(members_per_group_max=2)) as rig:
        first, second, third = Client(rig), Client(rig), Client(rig)
        await form(first)
        second_joins = second.joining()
        await settle()
        third_joins = third.joining()
        await settle()
        assert not third_joins.done()
        assert (await first.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert {(await second_joins).error, (await third_joins).error} == {ErrorCode.NONE}
        assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_group_over_a_lowered_limit_is_cut_back_to_it() -> None:
    async with Rig() as rig:
        clients = [Client(rig), Client(rig), Client(rig)]
        await form(*clients)
        await rig.crash(GroupSettings(members_per_group_max=2))
        assert rig.state() == "PreparingRebalance"
        joins = [client.joining() for client in clients]
        await settle()
        errors = [(await join).error for join in joins]
        assert sorted(errors) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


async def test_a_new_member_does_not_wait_for_ever() -> None:
    async with Rig(GroupSettings(new_member_join_timeout_ms=20_000)) as rig:
        first = Client(rig, rebalance_timeout_ms=600_000)
        await form(first)
        joining = Client(rig).joining()
        for _ in range(21):
            await rig.advance(1)
            first.heartbeat()
        assert (await joining).error is ErrorCode.UNKNOWN_MEMBER_ID
