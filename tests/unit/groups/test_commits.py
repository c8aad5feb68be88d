"""Committed offsets: which clients may commit, and that a fetch returns an acknowledged commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.groups import GroupSettings
from headrace.errors import PartitionFenced
from headrace.wire.codes import ErrorCode

from .rig import START_MS, Client, Rig, Topics, form_group, join_all, settle, subscription


async def test_a_committed_offset_is_fetched() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        errors = await rig.groups.commit(
            "g",
            [("orders", 0, 17, 3, "here"), ("payments", 1, 2**63 - 1, -1, None)],
            member_id=client.member_id,
            generation=client.generation,
        )
        assert errors == [ErrorCode.NONE, ErrorCode.NONE]
        row = rig.groups.fetch("g", "orders", 0)
        assert row is not None
        assert (row.offset, row.leader_epoch, row.metadata, row.committed_ms) == (17, 3, "here", START_MS)
        row = rig.groups.fetch("g", "payments", 1)
        assert row is not None
        assert (row.offset, row.leader_epoch, row.metadata) == (2**63 - 1, -1, "")
        assert {topic: set(rows) for topic, rows in rig.groups.fetch_all("g").items()} == {
            "orders": {0},
            "payments": {1},
        }


async def test_an_offset_that_was_never_committed_does_not_exist() -> None:
    async with Rig() as rig:
        assert rig.groups.fetch("g", "orders", 0) is None
        assert rig.groups.fetch_all("g") == {}
        await rig.commit(5)
        assert rig.groups.fetch("g", "orders", 1) is None
        assert rig.groups.fetch("other", "orders", 0) is None


async def test_a_commit_without_members_creates_a_group() -> None:
    async with Rig() as rig:
        assert await rig.commit(5) is ErrorCode.NONE
        (group,) = rig.groups.list_groups()
        assert (group.group_id, group.state, group.protocol_type) == ("g", "Empty", "")
        await rig.crash()
        assert rig.groups.list_groups() == [group]
        assert rig.committed() == 5


async def test_offsets_can_be_committed_for_the_empty_group_id() -> None:
    async with Rig() as rig:
        assert await rig.commit(5, group_id="") is ErrorCode.NONE
        assert rig.committed(group_id="") == 5


async def test_a_client_that_is_not_a_member_may_commit_only_in_an_empty_group() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await client.join()
        assert await rig.commit(5) is ErrorCode.UNKNOWN_MEMBER_ID
        await client.sync()
        assert await rig.commit(5) is ErrorCode.UNKNOWN_MEMBER_ID
        await client.leave()
        assert await rig.commit(5) is ErrorCode.NONE
        assert await rig.commit(6, member_id="whoever") is ErrorCode.NONE
        assert await rig.commit(7, member_id="whoever", generation=0) is ErrorCode.UNKNOWN_MEMBER_ID
        assert rig.committed() == 6


async def test_a_commit_must_name_the_member_and_its_generation() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        mine: dict[str, Any] = {"member_id": client.member_id, "generation": client.generation}
        assert await rig.commit(1, **{**mine, "generation": 2}) is ErrorCode.ILLEGAL_GENERATION
        assert await rig.commit(1, **{**mine, "generation": 0}) is ErrorCode.ILLEGAL_GENERATION
        assert await rig.commit(1, **{**mine, "generation": -1}) is ErrorCode.ILLEGAL_GENERATION
        assert await rig.commit(1, **{**mine, "member_id": "other"}) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await rig.commit(1, **mine, instance_id="one") is ErrorCode.UNKNOWN_MEMBER_ID
        assert await rig.commit(1, **mine) is ErrorCode.NONE


async def test_members_may_commit_while_a_rebalance_is_prepared_but_not_while_it_completes() -> None:
    async with Rig() as rig:
        first, second = Client(rig), Client(rig)
        await form_group(first)
        joining = second.joining()
        await settle()
        assert rig.state() == "PreparingRebalance"
        assert await first.commit(5) is ErrorCode.NONE
        await first.join()
        await joining
        assert rig.state() == "CompletingRebalance"
        assert await first.commit(6) is ErrorCode.REBALANCE_IN_PROGRESS
        assert rig.committed() == 5


async def test_a_commit_with_a_generation_of_an_unknown_group_is_refused() -> None:
    async with Rig() as rig:
        member: dict[str, Any] = {"member_id": "m", "generation": 4}
        assert await rig.commit(1, **member) is ErrorCode.GROUP_ID_NOT_FOUND
        assert await rig.commit(1, **member, supports_group_not_found=False) is ErrorCode.ILLEGAL_GENERATION
        assert rig.groups.list_groups() == []


async def test_unknown_partitions_get_their_own_error() -> None:
    async with Rig() as rig:
        errors = await rig.groups.commit(
            "g",
            [
                ("nothing", 0, 1, -1, ""),
                ("orders", 0, 2, -1, ""),
                ("orders", 4, 3, -1, ""),
                ("orders", -1, 4, -1, ""),
            ],
        )
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert errors == [unknown, ErrorCode.NONE, unknown, unknown]
        assert rig.committed() == 2
        assert list(rig.groups.fetch_all("g")) == ["orders"]


async def test_a_commit_of_unknown_partitions_does_not_check_the_group() -> None:
    async with Rig() as rig:
        await form_group(Client(rig))
        assert await rig.commit(1, topic="nothing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await rig.groups.commit("g", []) == []


async def test_an_error_of_the_whole_commit_does_not_replace_errors_of_partitions() -> None:
    async with Rig() as rig:
        await form_group(Client(rig))
        errors = await rig.groups.commit("g", [("nothing", 0, 1, -1, ""), ("orders", 0, 2, -1, "")])
        assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_MEMBER_ID]


async def test_metadata_has_a_limit() -> None:
    async with Rig() as rig:
        errors = await rig.groups.commit(
            "g", [("orders", 0, 1, -1, "x" * 4097), ("orders", 1, 1, -1, "x" * 4096)]
        )
        assert errors == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]


async def test_if_a_commit_names_a_partition_twice_the_last_offset_is_stored() -> None:
    async with Rig() as rig:
        await rig.groups.commit("g", [("orders", 0, 1, -1, ""), ("orders", 0, 2, -1, "")])
        assert rig.committed() == 2


async def test_a_commit_is_acknowledged_and_readable_only_when_it_is_durable() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.hold()
        committing = rig.start_request(rig.commit(2))
        await settle()
        assert not committing.done()
        assert rig.committed() == 1
        rig.journal.release()
        assert await committing is ErrorCode.NONE
        assert rig.committed() == 2


async def test_a_commit_whose_journal_write_failed_is_refused_and_not_returned() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.fails = True
        assert await rig.commit(2) is ErrorCode.NOT_COORDINATOR
        assert rig.committed() == 1
        rig.journal.fails = False
        assert await rig.commit(3) is ErrorCode.NONE


async def test_commits_are_applied_in_the_order_of_their_requests() -> None:
    async with Rig() as rig:
        rig.journal.hold()
        commits = [rig.start_request(rig.commit(offset)) for offset in range(50)]
        await settle()
        commits += [rig.start_request(rig.commit(offset)) for offset in range(50, 100)]
        await settle()
        rig.journal.release()
        assert {await commit for commit in commits} == {ErrorCode.NONE}
        assert rig.committed() == 99
        assert rig.journal.writes == 2
        await rig.crash()
        assert rig.committed() == 99


async def test_a_commit_is_stored_even_if_its_client_disconnects() -> None:
    async with Rig() as rig:
        rig.journal.hold()
        commit = asyncio.ensure_future(rig.commit(7))
        await settle()
        commit.cancel()
        rig.journal.release()
        await settle()
        assert rig.committed() == 7


async def test_a_snapshot_loses_no_acknowledged_commit() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.commit(1)
        rig.journal.snapshot()
        await client.commit(2)
        before = rig.groups.describe("g")
        await rig.crash()
        assert rig.committed() == 2
        rig.journal.snapshot()
        await rig.crash()
        assert rig.committed() == 2
        assert rig.groups.describe("g") == before


async def test_the_number_of_offsets_is_limited_and_existing_ones_can_change() -> None:
    async with Rig(GroupSettings(offsets_max=2)) as rig:
        errors = await rig.groups.commit("g", [("orders", index, 1, -1, "") for index in range(3)])
        assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
        assert await rig.commit(9) is ErrorCode.NONE
        assert await rig.commit(9, partition=2) is ErrorCode.POLICY_VIOLATION
        await rig.groups.delete_offsets("g", [("orders", 0)])
        assert await rig.commit(9, partition=2) is ErrorCode.NONE


async def test_all_metadata_together_has_a_limit() -> None:
    async with Rig(GroupSettings(all_offset_metadata_bytes_max=10)) as rig:
        commit = rig.groups.commit
        assert await commit("g", [("orders", 0, 1, -1, "12345678")]) == [ErrorCode.NONE]
        assert await commit("g", [("orders", 1, 1, -1, "123")]) == [ErrorCode.POLICY_VIOLATION]
        assert await commit("g", [("orders", 0, 2, -1, "1")]) == [ErrorCode.NONE]
        assert await commit("g", [("orders", 1, 1, -1, "123")]) == [ErrorCode.NONE]
        # One character outside ASCII makes every character of the text four bytes wide in memory.
        assert await commit("g", [("orders", 0, 2, -1, "😀")]) == [ErrorCode.NONE]
        assert await commit("g", [("orders", 0, 2, -1, "a😀")]) == [ErrorCode.POLICY_VIOLATION]


async def test_offsets_of_unsubscribed_topics_can_be_deleted() -> None:
    async with Rig() as rig:
        client = Client(rig, protocols=(("range", subscription("orders")),))
        await form_group(client)
        await client.commit(1)
        await client.commit(2, topic="payments")
        requested = [("orders", 0), ("payments", 0), ("payments", 1), ("nothing", 0)]
        assert await rig.groups.delete_offsets("g", requested) == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert rig.committed() == 1
        assert rig.committed("payments") is None
        await rig.crash()
        assert rig.committed("payments") is None


async def test_an_empty_group_is_subscribed_to_no_topic() -> None:
    async with Rig() as rig:
        client = Client(rig)
        await form_group(client)
        await client.commit(1)
        await client.leave()
        assert await rig.groups.delete_offsets("g", [("orders", 0)]) == [ErrorCode.NONE]
        assert rig.committed() is None


async def test_a_consumer_group_with_an_unreadable_subscription_counts_as_subscribed_to_all_topics() -> None:
    async with Rig() as rig:
        await form_group(Client(rig, protocols=(("range", b"\xff"),)))
        errors = await rig.groups.delete_offsets("g", [("orders", 0)])
        assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


async def test_offsets_of_other_kinds_of_groups_are_deleted_only_when_they_are_empty() -> None:
    async with Rig() as rig:
        client = Client(rig, protocol_type="connect")
        await form_group(client)
        assert await rig.groups.delete_offsets("g", [("orders", 0)]) is ErrorCode.NON_EMPTY_GROUP
        await client.leave()
        assert await rig.groups.delete_offsets("g", [("orders", 0)]) == [ErrorCode.NONE]


async def test_offsets_of_a_missing_group_cannot_be_deleted() -> None:
    async with Rig() as rig:
        assert await rig.groups.delete_offsets("", []) is ErrorCode.INVALID_GROUP_ID
        assert await rig.groups.delete_offsets("g", []) is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_deletion_whose_journal_write_failed_is_refused() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.fails = True
        assert await rig.groups.delete_offsets("g", [("orders", 0)]) is ErrorCode.NOT_COORDINATOR
        assert rig.committed() == 1


async def test_deleting_a_topic_deletes_its_offsets_in_every_group() -> None:
    async with Rig() as rig:
        await rig.commit(1, group_id="a")
        await rig.commit(2, group_id="b")
        await rig.commit(3, group_id="b", topic="payments")
        await rig.groups.forget_topic("orders")
        assert rig.committed(group_id="a") is None
        assert rig.committed(group_id="b") is None
        assert rig.committed("payments", group_id="b") == 3
        await rig.crash()
        assert rig.committed(group_id="b") is None


async def test_a_commit_in_progress_is_removed_when_its_topic_is_deleted() -> None:
    async with Rig() as rig:
        rig.journal.hold()
        committing = rig.start_request(rig.commit(1))
        await settle()
        forgetting = rig.start_request(rig.groups.forget_topic("orders"))
        rig.journal.release()
        await committing
        await forgetting
        assert rig.committed() is None


async def test_if_the_offsets_of_a_deleted_topic_cannot_be_removed_durably_an_error_is_raised() -> None:
    async with Rig() as rig:
        await rig.commit(1)
        rig.journal.fails = True
        with pytest.raises(PartitionFenced):
            await rig.groups.forget_topic("orders")
        assert rig.committed() == 1


async def test_after_an_interrupted_topic_deletion_a_start_deletes_the_offsets_of_the_topic() -> None:
    async with Rig(topics=Topics(orders=1, payments=1)) as rig:
        await rig.commit(1)
        await rig.commit(2, topic="payments")
        del rig.topics.partitions["orders"]
        await rig.crash()
        assert rig.committed() is None
        assert rig.committed("payments") == 2


async def test_each_member_may_commit_for_its_group() -> None:
    async with Rig() as rig:
        clients = [Client(rig), Client(rig)]
        await join_all(*clients)
        leader = next(client for client in clients if client.leads)
        follower = next(client for client in clients if not client.leads)
        syncing = follower.syncing()
        await leader.sync()
        await syncing
        assert await follower.commit(3) is ErrorCode.NONE
        assert await leader.commit(4) is ErrorCode.NONE
        assert rig.committed() == 4
