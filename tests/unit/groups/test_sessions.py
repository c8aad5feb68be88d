"""Who counts as alive, whatever happens to clocks and to the process."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.groups import GroupSettings
from headrace.wire.codes import ErrorCode

from .rig import Client, Rig, form, keep_alive, settle

YEAR_MS = 365 * 24 * 3600 * 1000


async def test_heartbeat_errors() -> None:
    async with Rig() as rig:
        beat = rig.groups.heartbeat
        assert beat("", "m", None, 1) is ErrorCode.INVALID_GROUP_ID
        assert beat("g", "m", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
        client = Client(rig)
        await form(client)
        assert beat("g", "m", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert beat("g", client.member_id, None, 2) is ErrorCode.ILLEGAL_GENERATION
        assert beat("g", client.member_id, None, 0) is ErrorCode.ILLEGAL_GENERATION
        assert client.heartbeat() is ErrorCode.NONE


async def test_a_silent_member_is_out_after_its_session_and_the_others_rebalance() -> None:
    async with Rig() as rig:
        silent, alive = Client(rig, session_timeout_ms=10_000), Client(rig, session_timeout_ms=10_000)
        await form(silent, alive)
        await keep_alive(rig, 9, [alive])
        assert alive.heartbeat() is ErrorCode.NONE
        await keep_alive(rig, 2, [alive])
        assert alive.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_group_is_empty_when_all_have_fallen_silent() -> None:
    async with Rig() as rig:
        await form(Client(rig), Client(rig))
        await rig.advance(11)
        assert rig.state() == "Empty"
        await rig.crash()
        assert rig.state() == "Empty"


async def test_commits_keep_a_session_alive() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        for offset in range(5):
            await rig.advance(6)
            assert await client.commit(offset) is ErrorCode.NONE


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 10 * YEAR_MS, -10 * YEAR_MS])
async def test_setting_the_wall_clock_expires_nobody(jump_ms: int) -> None:
    async with Rig() as rig:
        client, pending = Client(rig), Client(rig)
        await form(client)
        await pending.join_once()
        rig.clock.wall_ms += jump_ms
        await rig.advance(3)
        assert client.heartbeat() is ErrorCode.NONE
        assert rig.state() == "Stable"
        assert not (joining := pending.joining()).done()
        await settle()
        await client.join()
        assert (await joining).error is ErrorCode.NONE


async def test_a_frozen_wall_clock_keeps_nobody_alive() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        wall_ms = rig.clock.wall_ms
        for _ in range(11):
            await rig.advance(1)
            rig.clock.wall_ms = wall_ms
        assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_stalled_process_does_not_blame_its_members() -> None:
    async with Rig() as rig:
        clients = [Client(rig) for _ in range(5)]
        await form(*clients)
        await keep_alive(rig, 5, clients)
        rig.clock.steady_s += 60
        rig.groups.tick()
        assert {client.heartbeat() for client in clients} == {ErrorCode.NONE}


async def test_after_a_stall_a_session_still_ends() -> None:
    async with Rig() as rig:
        client = Client(rig, session_timeout_ms=10_000)
        await form(client)
        await rig.advance(5)
        rig.clock.steady_s += 60
        rig.groups.tick()
        await rig.advance(3)
        assert rig.state() == "Stable"
        await rig.advance(8)
        assert rig.state() == "Empty"


async def test_a_stall_also_puts_off_rebalances_and_ids_that_were_given_out() -> None:
    async with Rig() as rig:
        first, second, third = Client(rig, rebalance_timeout_ms=20_000), Client(rig), Client(rig)
        await form(first)
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


async def test_the_loop_itself_looks_after_sessions() -> None:
    """With the machine's own clock: nothing here calls ``tick``."""
    settings = GroupSettings(session_timeout_ms_min=1, tick_interval_ms=10)
    async with Rig(settings) as rig:
        loop = asyncio.get_running_loop()
        rig.clock.steady = loop.time  # type: ignore[method-assign]
        client = Client(rig, session_timeout_ms=30)
        await form(client)
        async with asyncio.timeout(120):
            while rig.state() != "Empty":
                await asyncio.sleep(0.005)


async def test_a_blocked_loop_costs_nobody_the_session() -> None:
    """With the machine's own clock and a loop that is really held up."""
    settings = GroupSettings(session_timeout_ms_min=1, tick_interval_ms=10, stall_ms_min=50)
    async with Rig(settings) as rig:
        loop = asyncio.get_running_loop()
        rig.clock.steady = loop.time  # type: ignore[method-assign]
        client = Client(rig, session_timeout_ms=300)
        await form(client)
        until = loop.time() + 0.4
        while loop.time() < until:
            pass
        await settle()
        assert client.heartbeat() is ErrorCode.NONE


async def test_a_stable_group_goes_on_after_a_crash_without_a_rebalance() -> None:
    async with Rig() as rig:
        clients = [Client(rig), Client(rig, instance_id="one"), Client(rig)]
        await form(*clients)
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


async def test_after_a_crash_every_member_has_a_full_session_to_be_heard() -> None:
    async with Rig() as rig:
        client = Client(rig, session_timeout_ms=10_000)
        await form(client)
        await rig.advance(9)
        rig.clock.steady_s += 3_600
        await rig.crash()
        await rig.advance(9)
        assert client.heartbeat() is ErrorCode.NONE
        await rig.crash()
        await rig.advance(11)
        assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_crash_in_the_middle_of_a_rebalance_leads_back_to_the_last_complete_one() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first)
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
        await form(first, second)


async def test_when_the_coordinator_stops_everyone_who_waits_is_told() -> None:
    async with Rig() as rig:
        first, second, third = Client(rig), Client(rig), Client(rig, group_id="other")
        await form(first)
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


async def test_a_parked_request_whose_connection_is_gone_leaves_no_error_behind() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form(first)
        joining = second.joining()
        await settle()
        joining.cancel()
        await settle()
        answer = await first.join()
        assert second.member_id in {member_id for member_id, _, _ in answer.members}
