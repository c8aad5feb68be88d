"""When offsets are dropped because nobody can want them any more."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.groups import ExpiredOffset, GroupSettings
from headrace.errors import PartitionFenced
from headrace.wire.codes import ErrorCode

from .rig import START_MS, Client, Rig, Topics, form, settle, subscription

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS


async def test_offsets_without_members_go_a_week_after_their_commit() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.clock.wall_ms += DAY_MS
        await rig.commit(2, partition=1)
        assert await rig.groups.expire(START_MS + WEEK_MS - 1) == []
        assert await rig.groups.expire(START_MS + WEEK_MS) == [ExpiredOffset("g", "orders", 0, 1)]
        assert rig.committed() is None
        assert rig.committed(partition=1) == 2
        assert await rig.groups.expire(START_MS + WEEK_MS + DAY_MS) == [ExpiredOffset("g", "orders", 1, 2)]
        assert rig.groups.list_groups() == []
        assert rig.groups.offsets_expired == 2
        await rig.crash()
        assert rig.groups.list_groups() == []


async def test_the_offsets_of_a_group_with_members_stay() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        await client.commit(1)
        assert await rig.groups.expire(START_MS + 100 * WEEK_MS) == []
        assert rig.committed() == 1


async def test_an_emptied_group_keeps_its_offsets_for_a_week() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        await client.commit(1)
        rig.clock.wall_ms += 10 * WEEK_MS
        emptied_ms = rig.clock.wall_ms
        await client.leave()
        assert await rig.groups.expire(emptied_ms + WEEK_MS - 1) == []
        await rig.crash()
        assert await rig.groups.expire(emptied_ms + WEEK_MS - 1) == []
        assert len(await rig.groups.expire(emptied_ms + WEEK_MS)) == 1
        assert rig.groups.list_groups() == []


async def test_an_offset_set_by_hand_in_a_group_long_empty_has_a_week_of_its_own() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        await client.leave()
        rig.clock.wall_ms += 2 * WEEK_MS
        await rig.commit(5)
        assert await rig.groups.expire(rig.clock.wall_ms + WEEK_MS - 1) == []
        assert len(await rig.groups.expire(rig.clock.wall_ms + WEEK_MS)) == 1


async def test_a_consumer_group_keeps_the_offsets_of_the_topics_it_reads() -> None:
    async with Rig() as rig:
        client = Client(rig, protocols=(("range", subscription("orders")),))
        await form(client)
        await client.commit(1)
        await client.commit(2, topic="payments")
        expired = await rig.groups.expire(START_MS + WEEK_MS)
        assert expired == [ExpiredOffset("g", "payments", 0, 2)]
        assert rig.committed() == 1
        assert rig.state() == "Stable"
        assert client.heartbeat() is ErrorCode.NONE


async def test_nothing_of_a_group_in_the_middle_of_a_rebalance_goes() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        await client.commit(2, topic="payments")
        await client.join()
        assert rig.state() == "CompletingRebalance"
        assert await rig.groups.expire(START_MS + WEEK_MS) == []


async def test_groups_of_other_kinds_keep_everything_while_they_have_members() -> None:
    async with Rig() as rig:
        client = Client(rig, protocol_type="connect")
        await form(client)
        await client.commit(1)
        assert await rig.groups.expire(START_MS + WEEK_MS) == []


async def test_a_retention_that_the_client_asked_for_counts_instead() -> None:
    async with Rig() as rig:
        await rig.commit(1, retention_ms=1_000)
        assert await rig.groups.expire(START_MS + 999) == []
        assert len(await rig.groups.expire(START_MS + 1_000)) == 1


async def test_the_longest_retention_there_is_survives_a_restart() -> None:
    async with Rig() as rig:
        await rig.commit(1, retention_ms=2**63 - 1)
        await rig.crash()
        assert await rig.groups.expire(START_MS + 1000 * WEEK_MS) == []
        assert rig.committed() == 1


async def test_a_time_before_the_commit_expires_nothing() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        assert await rig.groups.expire(START_MS - 10 * WEEK_MS) == []
        assert rig.committed() == 1


async def test_the_retention_is_a_setting() -> None:
    async with Rig(GroupSettings(offsets_retention_ms=60_000)) as rig:
        await rig.commit(1)
        assert await rig.groups.expire(START_MS + 59_999) == []
        assert len(await rig.groups.expire(START_MS + 60_000)) == 1


async def test_a_commit_under_way_keeps_its_offset() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.hold()
        committing = rig.park(rig.commit(2))
        await settle()
        expiring = rig.park(rig.groups.expire(START_MS + WEEK_MS))
        await settle()
        rig.journal.release()
        assert await committing is ErrorCode.NONE
        assert await expiring == []
        assert rig.committed() == 2


async def test_a_commit_that_comes_after_the_decision_stays() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.hold()
        expiring = rig.park(rig.groups.expire(START_MS + WEEK_MS))
        await settle()
        committing = rig.park(rig.commit(2))
        await settle()
        rig.journal.release()
        assert await expiring == [ExpiredOffset("g", "orders", 0, 1)]
        assert await committing is ErrorCode.NONE
        assert rig.committed() == 2
        assert rig.state() == "Empty"


async def test_a_member_that_joins_while_its_old_group_expires_is_not_lost() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.hold()
        expiring = rig.park(rig.groups.expire(START_MS + WEEK_MS))
        await settle()
        client = Client(rig)
        await client.join()
        rig.journal.release()
        await expiring
        assert (await client.sync({client.member_id: b"all"})).assignment == b"all"
        await rig.crash()
        assert client.heartbeat() is ErrorCode.NONE


async def test_a_group_with_neither_members_nor_offsets_is_forgotten_after_a_while() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form(client)
        await client.leave()
        await Client(rig, group_id="never").join_once()
        await rig.groups.expire(rig.clock.wall_ms + 599_999)
        assert len(rig.groups.list_groups()) == 2
        await rig.groups.expire(rig.clock.wall_ms + 600_000)
        assert [group.group_id for group in rig.groups.list_groups()] == ["never"], "its id is still out"
        await rig.advance(11)
        await rig.groups.expire(rig.clock.wall_ms + 600_000)
        assert rig.groups.list_groups() == []


async def test_an_expiry_that_the_journal_did_not_take_drops_nothing() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.fails = True
        with pytest.raises(PartitionFenced):
            await rig.groups.expire(START_MS + WEEK_MS)
        assert rig.committed() == 1
        assert rig.groups.offsets_expired == 0


async def test_a_clean_up_of_many_offsets_lets_others_run_and_leaves_what_they_commit() -> None:
    async with Rig(topics=Topics(orders=6_000)) as rig:
        for group_id in ("a", "b", "c"):
            commits = [("orders", index, 1, -1, "") for index in range(6_000)]
            assert set(await rig.groups.commit(group_id, commits)) == {ErrorCode.NONE}
        running = asyncio.ensure_future(rig.groups.expire(START_MS + WEEK_MS))
        await asyncio.sleep(0)
        assert not running.done()
        rig.clock.wall_ms += WEEK_MS
        late = asyncio.ensure_future(rig.commit(2, group_id="c"))
        expired = {(gone.group_id, gone.partition) for gone in await running}
        assert {("a", 0), ("b", 0)} <= expired
        assert ("c", 0) not in expired
        assert await late is ErrorCode.NONE
        assert rig.committed(group_id="c") == 2
