"""Assignments, from the leader to the members."""

from __future__ import annotations

from headrace.broker.groups import GroupSettings
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form_group, join_all, keep_alive, settle


async def test_members_get_the_assignments_of_the_leader() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first, second)
        assert rig.state() == "Stable"
        assert first.assignment == first.member_id.encode()
        assert second.assignment == second.member_id.encode()


async def test_followers_wait_for_the_leader() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await join_all(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        waiting = follower.syncing()
        await settle()
        assert not waiting.done()
        await leader.sync({follower.member_id: b"all"})
        assert (await waiting).assignment == b"all"
        assert leader.assignment == b""


async def test_no_member_gets_an_assignment_before_it_is_durable() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await client.join()
        rig.journal.hold()
        syncing = client.syncing({client.member_id: b"all"})
        await settle()
        assert not syncing.done()
        assert rig.state() == "CompletingRebalance"
        rig.journal.release()
        assert (await syncing).assignment == b"all"
        assert rig.state() == "Stable"


async def test_when_the_journal_fails_no_member_gets_an_assignment_and_the_group_rebalances_again() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await client.join()
        rig.journal.fails = True
        answer = await client.sync({client.member_id: b"all"})
        assert answer.error is ErrorCode.NOT_COORDINATOR
        assert answer.assignment == b""
        assert rig.state() == "PreparingRebalance"
        rig.journal.fails = False
        await client.join()
        assert client.generation == 2
        assert (await client.sync({client.member_id: b"all"})).assignment == b"all"


async def test_assignments_sent_before_a_join_are_discarded() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await first.join()
        rig.journal.hold()
        syncing = first.syncing({first.member_id: b"all"})
        await settle()
        joining = second.joining()
        assert (await syncing).error is ErrorCode.REBALANCE_IN_PROGRESS
        rig.journal.release()
        await settle()
        assert rig.state() == "PreparingRebalance"
        await first.join()
        await joining
        assert first.generation == second.generation == 2


async def test_late_assignments_of_an_earlier_generation_are_ignored() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await first.join()
        rig.journal.hold()
        late = first.syncing({first.member_id: b"late"})
        await settle()
        joining = second.joining()
        assert (await late).error is ErrorCode.REBALANCE_IN_PROGRESS
        await first.join()
        await joining
        leader, follower = (first, second) if first.leads else (second, first)
        syncing = follower.syncing()
        await settle()
        rig.journal.release()
        await settle()
        assert rig.state() == "CompletingRebalance"
        await leader.sync({leader.member_id: b"x", follower.member_id: b"y"})
        assert (await syncing).assignment == b"y"


async def test_a_leader_that_syncs_again_during_the_write_gets_its_assignment_after_the_write() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await client.join()
        rig.journal.hold()
        first = client.syncing({client.member_id: b"one"})
        await settle()
        second = client.syncing({client.member_id: b"two"})
        assert (await first).error is ErrorCode.REBALANCE_IN_PROGRESS
        rig.journal.release()
        assert (await second).assignment == b"one"
        await rig.crash()
        assert (await client.sync()).assignment == b"one"


async def test_a_sync_in_a_stable_group_returns_the_same_assignment() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        assert (await client.sync()).assignment == client.member_id.encode()


async def test_sync_errors() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        sync = client.sync
        assert (await sync(group_id="")).error is ErrorCode.INVALID_GROUP_ID
        assert (await sync(group_id="other")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await sync(member_id="other")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await sync(generation=7)).error is ErrorCode.ILLEGAL_GENERATION
        assert (await sync(protocol="sticky")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await sync(protocol_type="connect")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await sync(protocol_type="consumer", protocol="range")).error is ErrorCode.NONE
        joining = client.joining()
        await settle()
        await joining
        other = Client(rig).joining()
        await settle()
        assert (await sync()).error is ErrorCode.REBALANCE_IN_PROGRESS
        await client.join()
        await other


async def test_a_sync_in_an_empty_group_is_an_error() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.leave()
        assert (await client.sync()).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    async with Rig() as rig:
        first, second = Client(rig, rebalance_timeout_ms=20_000), Client(rig, rebalance_timeout_ms=20_000)
        await join_all(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        await leader.sync({leader.member_id: b"x", follower.member_id: b"y"})
        for _ in range(21):
            await rig.advance(1)
            leader.heartbeat()
            follower.heartbeat()
        assert follower.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_leader_that_never_assigns_is_removed_and_waiting_members_get_an_error() -> None:
    async with Rig() as rig:
        first, second = Client(rig, rebalance_timeout_ms=20_000), Client(rig, rebalance_timeout_ms=20_000)
        await join_all(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        waiting = follower.syncing()
        for _ in range(21):
            await rig.advance(1)
            leader.heartbeat()
        assert (await waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
        assert leader.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await follower.join()).leader == follower.member_id


async def test_the_session_of_a_member_restarts_after_its_waiting_sync() -> None:
    async with Rig() as rig:
        first, second = Client(rig, session_timeout_ms=10_000), Client(rig, session_timeout_ms=10_000)
        await join_all(first, second)
        leader, follower = (first, second) if first.leads else (second, first)
        waiting = follower.syncing()
        await keep_alive(rig, 15, [leader])
        await leader.sync({})
        assert (await waiting).error is ErrorCode.NONE
        await keep_alive(rig, 11, [leader])
        assert follower.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_assignments_beyond_the_limit_are_refused() -> None:
    async with Rig(GroupSettings(assignment_bytes_max=100)) as rig:
        client = Client(rig)
        await client.join()
        assert (await client.sync({client.member_id: bytes(101)})).error is ErrorCode.UNKNOWN_SERVER_ERROR
        await client.join()
        assert (await client.sync({client.member_id: bytes(100)})).error is ErrorCode.NONE


async def test_heartbeats_extend_the_session_while_the_leader_assigns() -> None:
    async with Rig() as rig:
        client = Client(rig, session_timeout_ms=10_000)
        await client.join()
        for _ in range(30):
            await rig.advance(1)
            assert client.heartbeat() is ErrorCode.NONE
        assert rig.state() == "CompletingRebalance"
