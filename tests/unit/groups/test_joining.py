"""Joining a group."""

from __future__ import annotations

import re

from headrace.broker.groups import GroupSettings
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form_group, join_all, settle, subscription


async def test_a_new_member_must_join_again_with_its_assigned_id() -> None:
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


async def test_before_version_4_a_member_joins_without_an_id() -> None:
    async with Rig() as rig:
        answer = await Client(rig, version=3).join_once()
        assert answer.error is ErrorCode.NONE
        assert answer.generation == 1
        assert answer.member_id.startswith("app-")


async def test_the_first_member_leads_and_gets_the_list_of_members() -> None:
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


async def test_followers_do_not_get_the_list_of_members() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first, second)
        assert first.answer.leader == second.answer.leader
        leader, follower = (first, second) if first.leads else (second, first)
        assert {member_id for member_id, _, _ in leader.answer.members} == {first.member_id, second.member_id}
        assert follower.answer.members == ()


async def test_a_second_member_waits_until_the_first_has_rejoined() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first)
        joining = second.joining()
        await settle()
        assert not joining.done()
        assert rig.state() == "PreparingRebalance"
        assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS

        await first.join()
        assert (await joining).generation == first.generation == 2


async def test_a_member_that_does_not_rejoin_within_the_rebalance_timeout_is_removed() -> None:
    async with Rig() as rig:
        first, second = Client(rig, rebalance_timeout_ms=20_000), Client(rig, rebalance_timeout_ms=20_000)
        await form_group(first)
        joining = second.joining()
        for _ in range(19):
            await rig.advance(1)
            assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert not joining.done()
        await rig.advance(2)
        answer = await joining
        assert [member_id for member_id, _, _ in answer.members] == [second.member_id]
        assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_rebalance_waits_for_the_longest_rebalance_timeout_of_the_members() -> None:
    async with Rig() as rig:
        first, second = Client(rig, rebalance_timeout_ms=40_000), Client(rig, rebalance_timeout_ms=8_000)
        await form_group(first)
        joining = second.joining()
        for _ in range(39):
            await rig.advance(1)
            first.heartbeat()
        assert not joining.done()
        await rig.advance(2)
        assert (await joining).error is ErrorCode.NONE


async def test_a_leader_that_does_not_rejoin_is_replaced_by_a_member_that_did() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first, second)
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


async def test_a_rebalance_waits_until_a_pending_member_id_is_used_or_expires() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig, session_timeout_ms=15_000)
        await form_group(first)
        await second.join_once()
        rejoining = rig.start_request(first.join())
        await settle()
        assert not rejoining.done()
        await rig.advance(14)
        assert not rejoining.done()
        await rig.advance(2)
        assert (await rejoining).error is ErrorCode.NONE
        assert (await second.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_pending_member_id_is_valid_for_one_session_timeout() -> None:
    async with Rig() as rig:
        client = Client(rig, session_timeout_ms=10_000)
        await client.join_once()
        await rig.advance(11)
        assert (await client.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_each_new_member_extends_the_delay_of_the_first_rebalance() -> None:
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


async def test_among_the_protocols_that_all_members_support_the_one_with_most_votes_is_chosen() -> None:
    async with Rig() as rig:
        both = (("sticky", b"s"), ("range", b"r"))
        clients = [
            Client(rig, protocols=(("range", b"1"), ("sticky", b"1"))),
            Client(rig, protocols=both),
            Client(rig, protocols=(("cooperative", b"3"), *both)),
        ]
        await form_group(*clients)
        assert {client.answer.protocol for client in clients} == {"sticky"}
        leader = next(client for client in clients if client.leads)
        assert sorted(metadata for _, _, metadata in leader.answer.members) == [b"1", b"s", b"s"]


async def test_a_member_without_a_protocol_in_common_is_refused() -> None:
    async with Rig() as rig:
        first = Client(rig, protocols=(("range", b""),))
        await form_group(first)
        second = Client(rig, protocols=(("sticky", b""),))
        assert (await second.join_once()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert first.heartbeat() is ErrorCode.NONE


async def test_a_member_of_another_protocol_type_is_refused() -> None:
    async with Rig() as rig:
        await form_group(Client(rig))
        answer = await Client(rig, protocol_type="connect").join_once()
        assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_protocols_and_their_type_are_required() -> None:
    async with Rig() as rig:
        assert (await Client(rig, protocols=()).join_once()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (
            await Client(rig, protocol_type="").join_once()
        ).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert rig.groups.list_groups() == []


async def test_an_empty_group_accepts_any_protocol_type() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.leave()
        await form_group(Client(rig, protocol_type="connect", protocols=(("eager", b""),)))
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


async def test_an_unknown_member_id_is_refused() -> None:
    async with Rig() as rig:
        unknown_client = Client(rig, member_id="app-00000000-0000-0000-0000-000000000000")
        assert (await unknown_client.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert rig.groups.list_groups() == []
        await form_group(Client(rig))
        assert (await unknown_client.join_once()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_follower_that_rejoins_unchanged_gets_the_same_generation() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first, second)
        follower = second if first.leads else first
        generation = follower.generation
        answer = await follower.join()
        assert answer.generation == generation
        assert answer.members == ()
        assert rig.state() == "Stable"


async def test_a_leader_that_rejoins_starts_a_rebalance() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first, second)
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
        await form_group(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        follower.protocols = (("range", subscription("orders", "payments")),)
        joining = follower.joining()
        await settle()
        assert rig.state() == "PreparingRebalance"
        answer = await leader.join()
        assert (follower.member_id, None, subscription("orders", "payments")) in answer.members
        await joining


async def test_a_member_whose_response_was_lost_gets_it_again() -> None:
    async with Rig() as rig:
        client = Client(rig)
        first = await client.join()
        assert await client.join() == first


async def test_a_new_subscription_during_the_assignment_restarts_the_rebalance() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await join_all(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        follower_sync = follower.syncing()
        await settle()
        leader.protocols = (("range", subscription("payments")),)
        joining = leader.joining()
        assert (await follower_sync).error is ErrorCode.REBALANCE_IN_PROGRESS
        await follower.join()
        assert (await joining).error is ErrorCode.NONE


async def test_a_repeated_join_fails_the_earlier_one() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first)
        abandoned = second.joining()
        await settle()
        again = second.joining()
        assert (await abandoned).error is ErrorCode.REBALANCE_IN_PROGRESS
        await first.join()
        assert (await again).error is ErrorCode.NONE


async def test_a_group_has_a_maximum_size() -> None:
    async with Rig(GroupSettings(members_per_group_max=2)) as rig:
        first, second, third = Client(rig), Client(rig), Client(rig)
        await form_group(first, second)
        answer = await third.join()
        assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert answer.member_id == ""
        assert first.heartbeat() is ErrorCode.NONE


async def test_the_group_size_limit_counts_rejoined_members_during_a_rebalance() -> None:
    async with Rig(GroupSettings(members_per_group_max=2)) as rig:
        first, second, third = Client(rig), Client(rig), Client(rig)
        await form_group(first)
        second_joins = second.joining()
        await settle()
        third_joins = third.joining()
        await settle()
        assert not third_joins.done()
        assert (await first.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert {(await second_joins).error, (await third_joins).error} == {ErrorCode.NONE}
        assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_group_beyond_a_lowered_limit_shrinks_to_it() -> None:
    async with Rig() as rig:
        clients = [Client(rig), Client(rig), Client(rig)]
        await form_group(*clients)
        await rig.crash(GroupSettings(members_per_group_max=2))
        assert rig.state() == "PreparingRebalance"
        joins = [client.joining() for client in clients]
        await settle()
        errors = [(await join).error for join in joins]
        assert sorted(errors) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


async def test_the_join_of_a_new_member_has_a_time_limit() -> None:
    async with Rig(GroupSettings(new_member_join_timeout_ms=20_000)) as rig:
        first = Client(rig, rebalance_timeout_ms=600_000)
        await form_group(first)
        joining = Client(rig).joining()
        for _ in range(21):
            await rig.advance(1)
            first.heartbeat()
        assert (await joining).error is ErrorCode.UNKNOWN_MEMBER_ID
