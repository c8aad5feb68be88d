"""Committed offsets expire if their group does not use them."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.groups import ExpiredOffset, GroupSettings
from headrace.errors import PartitionFenced
from headrace.wire.codes import ErrorCode

from .rig import START_MS, Client, Rig, Topics, form_group, settle, subscription

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS


async def test_offsets_without_members_expire_a_week_after_their_commit() -> None:
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


async def test_the_offsets_of_a_group_with_members_do_not_expire() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.commit(1)
        assert await rig.groups.expire(START_MS + 100 * WEEK_MS) == []
        assert rig.committed() == 1


async def test_the_offsets_of_a_group_expire_a_week_after_its_last_member_left() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.commit(1)
        rig.clock.wall_ms += 10 * WEEK_MS
        emptied_ms = rig.clock.wall_ms
        await client.leave()
        assert await rig.groups.expire(emptied_ms + WEEK_MS - 1) == []
        await rig.crash()
        assert await rig.groups.expire(emptied_ms + WEEK_MS - 1) == []
        assert len(await rig.groups.expire(emptied_ms + WEEK_MS)) == 1
        assert rig.groups.list_groups() == []


async def test_an_offset_committed_in_an_empty_group_expires_a_week_after_that_commit() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.leave()
        rig.clock.wall_ms += 2 * WEEK_MS
        await rig.commit(5)
        assert await rig.groups.expire(rig.clock.wall_ms + WEEK_MS - 1) == []
        assert len(await rig.groups.expire(rig.clock.wall_ms + WEEK_MS)) == 1


async def test_offsets_of_subscribed_topics_of_a_consumer_group_do_not_expire() -> None:
    async with Rig() as rig:
        client = Client(rig, protocols=(("range", subscription("orders")),))
        await form_group(client)
        await client.commit(1)
        await client.commit(2, topic="payments")
        expired = await rig.groups.expire(START_MS + WEEK_MS)
        assert expired == [ExpiredOffset("g", "payments", 0, 2)]
        assert rig.committed() == 1
        assert rig.state() == "Stable"
        assert client.heartbeat() is ErrorCode.NONE


async def test_no_offset_expires_during_a_rebalance() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.commit(2, topic="payments")
        await client.join()
        assert rig.state() == "CompletingRebalance"
        assert await rig.groups.expire(START_MS + WEEK_MS) == []


async def test_offsets_of_other_group_types_do_not_expire_while_the_group_has_members() -> None:
    async with Rig() as rig:
        client = Client(rig, protocol_type="connect")
        await form_group(client)
        await client.commit(1)
        assert await rig.groups.expire(START_MS + WEEK_MS) == []


async def test_a_retention_in_the_commit_request_overrides_the_setting() -> None:
    async with Rig() as rig:
        await rig.commit(1, retention_ms=1_000)
        assert await rig.groups.expire(START_MS + 999) == []
        assert len(await rig.groups.expire(START_MS + 1_000)) == 1


async def test_the_longest_possible_retention_survives_a_restart() -> None:
    async with Rig() as rig:
        await rig.commit(1, retention_ms=2**63 - 1)
        await rig.crash()
        assert await rig.groups.expire(START_MS + 1000 * WEEK_MS) == []
        assert rig.committed() == 1


async def test_no_offset_expires_if_the_clock_is_before_the_commit() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        assert await rig.groups.expire(START_MS - 10 * WEEK_MS) == []
        assert rig.committed() == 1


async def test_the_retention_is_a_setting() -> None:
    async with Rig(GroupSettings(offsets_retention_ms=60_000)) as rig:
        await rig.commit(1)
        assert await rig.groups.expire(START_MS + 59_999) == []
        assert len(await rig.groups.expire(START_MS + 60_000)) == 1


async def test_an_offset_with_a_commit_in_progress_does_not_expire() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.hold()
        committing = rig.start_request(rig.commit(2))
        await settle()
        expiring = rig.start_request(rig.groups.expire(START_MS + WEEK_MS))
        await settle()
        rig.journal.release()
        assert await committing is ErrorCode.NONE
        assert await expiring == []
        assert rig.committed() == 2


async def test_a_commit_after_the_decision_to_expire_is_not_removed() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.hold()
        expiring = rig.start_request(rig.groups.expire(START_MS + WEEK_MS))
        await settle()
        committing = rig.start_request(rig.commit(2))
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
        expiring = rig.start_request(rig.groups.expire(START_MS + WEEK_MS))
        await settle()
        client = Client(rig)
        await client.join()
        rig.journal.release()
        await expiring
        assert (await client.sync({client.member_id: b"all"})).assignment == b"all"
        await rig.crash()
        assert client.heartbeat() is ErrorCode.NONE


async def test_a_group_without_members_and_offsets_is_removed_after_its_retention() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.leave()
        await Client(rig, group_id="never").join_once()
        await rig.groups.expire(rig.clock.wall_ms + 599_999)
        assert len(rig.groups.list_groups()) == 2
        await rig.groups.expire(rig.clock.wall_ms + 600_000)
        assert [group.group_id for group in rig.groups.list_groups()] == ["never"], (
            "its pending id is still valid"
        )
        await rig.advance(11)
        await rig.groups.expire(rig.clock.wall_ms + 600_000)
        assert rig.groups.list_groups() == []


async def test_an_expiry_that_the_journal_cannot_write_deletes_nothing() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.fails = True
        with pytest.raises(PartitionFenced):
            await rig.groups.expire(START_MS + WEEK_MS)
        assert rig.committed() == 1
        assert rig.groups.offsets_expired == 0


async def test_other_tasks_run_during_a_large_expiry_and_their_commits_are_not_removed() -> None:
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
