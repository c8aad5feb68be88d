"""Sessions, with clocks that jump and a process that stops."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.groups import GroupSettings
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form_group, keep_alive, settle

YEAR_MS = 365 * 24 * 3600 * 1000


async def test_heartbeat_errors() -> None:
    async with Rig() as rig:
        beat = rig.groups.heartbeat
        assert beat("", "m", None, 1) is ErrorCode.INVALID_GROUP_ID
        assert beat("g", "m", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
        client = Client(rig)
        await form_group(client)
        assert beat("g", "m", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert beat("g", client.member_id, None, 2) is ErrorCode.ILLEGAL_GENERATION
        assert beat("g", client.member_id, None, 0) is ErrorCode.ILLEGAL_GENERATION
        assert client.heartbeat() is ErrorCode.NONE


async def test_a_member_without_heartbeats_is_removed_after_its_session_and_the_others_rebalance() -> None:
    async with Rig() as rig:
        silent, alive = Client(rig, session_timeout_ms=10_000), Client(rig, session_timeout_ms=10_000)
        await form_group(silent, alive)
        await keep_alive(rig, 9, [alive])
        assert alive.heartbeat() is ErrorCode.NONE
        await keep_alive(rig, 2, [alive])
        assert alive.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_group_is_empty_when_all_sessions_have_expired() -> None:
    async with Rig() as rig:
        await form_group(Client(rig), Client(rig))
        await rig.advance(11)
        assert rig.state() == "Empty"
        await rig.crash()
        assert rig.state() == "Empty"


async def test_commits_keep_a_session_alive() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        for offset in range(5):
            await rig.advance(6)
            assert await client.commit(offset) is ErrorCode.NONE


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 10 * YEAR_MS, -10 * YEAR_MS])
async def test_setting_the_wall_clock_expires_no_member(jump_ms: int) -> None:
    async with Rig() as rig:
        client, pending = Client(rig), Client(rig)
        await form_group(client)
        await pending.join_once()
        rig.clock.wall_ms += jump_ms
        await rig.advance(3)
        assert client.heartbeat() is ErrorCode.NONE
        assert rig.state() == "Stable"
        assert not (joining := pending.joining()).done()
        await settle()
        await client.join()
        assert (await joining).error is ErrorCode.NONE


async def test_a_frozen_wall_clock_does_not_extend_sessions() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        wall_ms = rig.clock.wall_ms
        for _ in range(11):
            await rig.advance(1)
            rig.clock.wall_ms = wall_ms
        assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_stall_of_the_process_expires_no_session() -> None:
    async with Rig() as rig:
        clients = [Client(rig) for _ in range(5)]
        await form_group(*clients)
        await keep_alive(rig, 5, clients)
        rig.clock.steady_s += 60
        rig.groups.tick()
        assert {client.heartbeat() for client in clients} == {ErrorCode.NONE}


async def test_sessions_still_expire_after_a_stall() -> None:
    async with Rig() as rig:
        client = Client(rig, session_timeout_ms=10_000)
        await form_group(client)
        await rig.advance(5)
        rig.clock.steady_s += 60
        rig.groups.tick()
        await rig.advance(3)
        assert rig.state() == "Stable"
        await rig.advance(8)
        assert rig.state() == "Empty"


async def test_after_a_stall_a_session_has_the_time_that_was_left_at_the_last_tick() -> None:
    async with Rig(GroupSettings(session_timeout_ms_min=1)) as rig:
        client = Client(rig, session_timeout_ms=1_500)
        await form_group(client)
        await rig.advance(1)
        assert client.heartbeat() is ErrorCode.NONE
        rig.clock.steady_s += 3
        rig.groups.tick()
        await rig.advance(1)
        assert client.heartbeat() is ErrorCode.NONE


async def test_a_stall_also_postpones_rebalances_and_pending_member_ids() -> None:
    async with Rig() as rig:
        first, second, third = Client(rig, rebalance_timeout_ms=20_000), Client(rig), Client(rig)
        await form_group(first)
        await third.join_once()
        joining = second.joining()
        await rig.advance(5)
        first.heartbeat()
        rig.clock.steady_s += 300
        rig.groups.tick()
        await settle()
        assert not joining.done()
        joins = [first.joining(), third.joining()]
        assert {(await join).error for join in [joining, *joins]} == {ErrorCode.NONE}


async def test_the_event_loop_expires_sessions() -> None:
    """With the machine's own clock: the test never calls ``tick``."""
    settings = GroupSettings(session_timeout_ms_min=1, tick_interval_ms=10)
    async with Rig(settings) as rig:
        loop = asyncio.get_running_loop()
        rig.clock.steady = loop.time  # type: ignore[method-assign]
        client = Client(rig, session_timeout_ms=30)
        await form_group(client)
        async with asyncio.timeout(120):
            while rig.state() != "Empty":
                await asyncio.sleep(0.005)


async def test_a_blocked_loop_expires_no_session() -> None:
    """With the machine's own clock and an event loop that is really blocked."""
    settings = GroupSettings(session_timeout_ms_min=1, tick_interval_ms=10, stall_ms_min=50)
    async with Rig(settings) as rig:
        loop = asyncio.get_running_loop()
        rig.clock.steady = loop.time  # type: ignore[method-assign]
        client = Client(rig, session_timeout_ms=300)
        await form_group(client)
        until = loop.time() + 0.4
        while loop.time() < until:
            pass
        await settle()
        assert client.heartbeat() is ErrorCode.NONE


async def test_a_stable_group_continues_after_a_crash_without_a_rebalance() -> None:
    async with Rig() as rig:
        clients = [Client(rig), Client(rig, instance_id="one"), Client(rig)]
        await form_group(*clients)
        before = rig.groups.describe("g")
        await rig.crash()
        assert rig.groups.describe("g") == before
        assert {client.heartbeat() for client in clients} == {ErrorCode.NONE}
        assert {await client.commit(7) for client in clients} == {ErrorCode.NONE}
        for client in clients:
            assert (await client.sync()).assignment == client.member_id.encode()
        follower = next(client for client in clients if not client.leads and client.instance_id is None)
        assert (await follower.join()).generation == follower.generation
        assert rig.state() == "Stable"


async def test_after_a_crash_every_member_has_a_full_session_for_its_heartbeat() -> None:
    async with Rig() as rig:
        client = Client(rig, session_timeout_ms=10_000)
        await form_group(client)
        await rig.advance(9)
        rig.clock.steady_s += 3_600
        await rig.crash()
        await rig.advance(9)
        assert client.heartbeat() is ErrorCode.NONE
        await rig.crash()
        await rig.advance(11)
        assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_crash_during_a_rebalance_restores_the_last_complete_generation() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first)
        joining = second.joining()
        await settle()
        await first.join()
        await joining
        assert first.generation == 2
        await rig.crash()
        assert rig.state() == "Stable"
        assert first.heartbeat() is ErrorCode.ILLEGAL_GENERATION
        assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        second.member_id = ""
        await form_group(first, second)


async def test_when_the_coordinator_stops_all_waiting_requests_fail() -> None:
    async with Rig() as rig:
        first, second, third = Client(rig), Client(rig), Client(rig, group_id="other")
        await form_group(first)
        await third.join()
        joining = second.joining()
        await settle()
        await rig.groups.stop()
        assert (await joining).error is ErrorCode.NOT_COORDINATOR
        assert first.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await first.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await third.sync()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await first.commit(1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await first.leave() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await rig.groups.delete_groups(["g"]) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert await rig.groups.delete_offsets("g", []) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_closing_the_connection_of_a_waiting_request_logs_no_error() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first)
        joining = second.joining()
        await settle()
        joining.cancel()
        await settle()
        answer = await first.join()
        assert second.member_id in {member_id for member_id, _, _ in answer.members}
