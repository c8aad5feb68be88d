"""A restart completes decided transactions, continues open ones, and aborts those without an owner."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import DamagedState
from headrace.wire.codes import ErrorCode
from tests.unit.groups.journal import MemoryJournal

from .rig import NONE, Producer, Rig, both_protocols, settle


@both_protocols
async def test_an_open_transaction_continues_after_a_crash(uses_v2: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        producer.write("a")
        await producer.commit_offset(7)
        await rig.crash(power=True)
        assert (rig.state(), rig.offset()) == ("Ongoing", None)
        assert rig.groups.is_unstable("g", "orders", 0)
        assert producer.write("b", "orders", 1) is NONE
        assert await producer.commit() is NONE
        assert rig.committed() == (["a"], ["b"])
        assert rig.offset() == 7


@both_protocols
async def test_markers_that_a_power_loss_removed_are_written_again(uses_v2: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        producer.write("a")
        producer.write("b", "orders", 1)
        assert await producer.commit() is NONE
        rig.partition("orders", 1).sync()
        await rig.crash(power=True)
        assert rig.committed() == (["a"], ["b"])
        assert rig.state() == "CompleteCommit"


@both_protocols
async def test_a_lost_marker_is_written_again_while_the_producer_has_an_open_transaction(
    uses_v2: bool,
) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        producer.write("a")
        await producer.commit()
        producer.write("open", "orders", 1)
        await rig.crash(power=True)
        assert (rig.partition().committed(), rig.state()) == (["a"], "Ongoing")
        await producer.abort()
        assert rig.partition("orders", 1).committed() == []


@both_protocols
async def test_a_lost_marker_is_written_again_after_a_later_transaction_was_decided(uses_v2: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        producer.write("a")
        await producer.commit()
        producer.write("b", "orders", 1)
        await producer.abort()
        rig.partition("orders", 1).sync()
        await rig.crash(power=True)
        assert rig.committed() == (["a"], [])


@both_protocols
async def test_recovery_distinguishes_an_open_transaction_from_the_decided_one_before_it(
    uses_v2: bool,
) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        producer.write("a")
        await producer.commit()
        producer.write("b")
        await rig.crash(power=True)
        assert (rig.partition().committed(), rig.state()) == (["a"], "Ongoing")
        await producer.abort()
        assert rig.partition().committed() == ["a"]


@both_protocols
@pytest.mark.parametrize("with_last_write", [False, True])
async def test_a_crash_at_the_decision_commits_all_or_nothing(uses_v2: bool, with_last_write: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        producer.write("a")
        producer.write("b", "orders", 1)
        await producer.commit_offset(7)
        before = producer.identity
        rig.journal.hold()
        ending = asyncio.ensure_future(producer.end(commit=True))
        await settle()
        await rig.crash(with_last_write=with_last_write, power=True)
        await asyncio.wait([ending])
        results = (*rig.committed(), rig.offset())
        assert results == ((["a"], ["b"], 7) if with_last_write else ([], [], None))
        retry = await rig.transactions.end(*before, commit=True, bumps_epoch=uses_v2)
        assert retry.error is NONE
        results = (*rig.committed(), rig.offset())
        assert results == (["a"], ["b"], 7)


async def test_a_fenced_producer_stays_fenced() -> None:
    async with Rig() as rig:
        zombie, successor = Producer(rig), Producer(rig)
        await zombie.init()
        zombie.write("a")
        await successor.init()
        await rig.crash(power=True)
        assert zombie.write("b") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.commit() is ErrorCode.PRODUCER_FENCED
        assert successor.write("c") is NONE
        assert await successor.commit() is NONE
        assert rig.partition().committed() == ["c"]


async def test_an_open_transaction_without_an_owner_is_aborted() -> None:
    async with Rig() as rig:
        rig.partition().append(77, 3, "a")
        await rig.crash()
        assert rig.partition().open_transactions() == {}
        assert rig.partition().committed() == []


async def test_after_a_restart_an_empty_transaction_may_be_committed_or_aborted() -> None:
    async with Rig() as rig:
        for commit in (True, False):
            producer = await Producer.create(rig, uses_v2=False)
            producer.write("a")
            await producer.commit()
            assert rig.transactions.add_partitions(*producer.identity, [("orders", 1)]) is NONE
            rig.sync()
            await rig.crash()
            assert rig.transactions.admit(*producer.identity, "orders", 1, may_add=False) is NONE
            assert (await producer.end(commit=commit)).error is NONE


async def test_exhausted_epochs_are_detected_after_the_last_end() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        rig.transactions._by_id["x"].epoch = producer.epoch = 32_766
        before = producer.identity
        producer.write("a")
        answer = await producer.end(commit=True)
        await rig.crash(power=True)
        assert rig.partition().committed() == ["a"]
        assert await rig.transactions.end(*before, commit=True, bumps_epoch=True) == answer
        assert producer.write("b") is NONE


async def test_pending_markers_of_an_offline_partition_are_retained() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        await producer.commit()
        rig.partition().lose_power()
        rig.partition().needs_restart = True
        await rig.crash()
        producer.write("b", "orders", 1)
        await producer.commit()
        rig.partition().needs_restart = False
        await rig.crash()
        assert rig.committed() == (["a"], ["b"])


@both_protocols
async def test_a_marker_that_cannot_be_written_at_start_is_retried_and_blocks_its_id(
    uses_v2: bool,
) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        producer.write("a")
        await producer.commit()
        rig.partition().append(77, 3, "of nobody")
        rig.partition().lose_power()
        rig.partition().log[:] = [line for line in rig.partition().log if line.committed is None]
        rig.partition().is_full = True
        await rig.crash()
        assert producer.write("b") is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (await Producer(rig).init()).error is ErrorCode.CONCURRENT_TRANSACTIONS
        await rig.advance(3)
        rig.partition().is_full = False
        await rig.advance(2)
        assert rig.partition().committed() == ["a"]
        assert rig.partition().open_transactions() == {}
        assert producer.write("b") is NONE
        assert await producer.commit() is NONE
        assert rig.partition().committed() == ["a", "b"]


async def test_a_snapshot_restores_the_same_state_as_its_entries() -> None:
    async with Rig() as rig:
        ended, opened = Producer(rig, "ended"), Producer(rig, "open")
        await ended.init()
        await opened.init()
        ended.write("a")
        await ended.commit_offset(3, "h")
        await ended.commit()
        opened.write("b", "orders", 1)
        await opened.commit_offset(7)
        rig.journal.snapshot()
        await rig.crash(power=True)
        assert (rig.state("ended"), rig.state("open")) == ("CompleteCommit", "Ongoing")
        assert (rig.partition().committed(), rig.offset("h"), rig.offset("g")) == (["a"], 3, None)
        assert await opened.commit() is NONE
        assert rig.offset("g") == 7


async def test_pending_offsets_are_deleted_with_their_group_or_topic() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        await producer.commit_offset(1, "g")
        await producer.commit_offset(2, "h", "payments")
        await rig.groups.delete_groups(["g"])
        await rig.groups.forget_topic("payments")
        assert not rig.groups.is_unstable("g", "orders", 0)
        assert await producer.commit() is NONE
        assert (rig.offset("g"), rig.offset("h", "payments")) == (None, None)


async def test_a_group_with_pending_offsets_does_not_expire() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        await producer.commit_offset(1)
        await rig.groups.expire(rig.clock.wall_ms + 30 * 24 * 3600 * 1000)
        await producer.commit()
        assert rig.offset() == 1


async def test_the_coordinator_refuses_to_start_with_an_invalid_entry() -> None:
    rig = Rig()
    rig.journal = MemoryJournal([b'{"kind":"transaction","id":"x"}'])
    with pytest.raises(DamagedState):
        rig._open()


async def test_nothing_is_served_before_recovery() -> None:
    async with Rig() as rig:
        await rig.transactions.stop()
        producer = Producer(rig)
        assert (await producer.init()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert producer.write("a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await producer.commit() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert rig.transactions.describe("x") is ErrorCode.COORDINATOR_NOT_AVAILABLE
