"""What a start finds: decided transactions are finished, open ones go on, and those of nobody are aborted."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import DamagedState
from headrace.wire.codes import ErrorCode
from tests.unit.groups.journal import MemoryJournal

from .rig import NONE, Producer, Rig, both, settle


@both
async def test_an_open_transaction_goes_on_after_a_crash(second: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        producer.write("a")
        await producer.commit_offset(7)
        await rig.crash(power=True)
        assert (rig.state(), rig.offset()) == ("Ongoing", None)
        assert rig.groups.is_unstable("g", "orders", 0)
        assert producer.write("b", "orders", 1) is NONE
        assert await producer.commit() is NONE
        assert rig.committed() == (["a"], ["b"])
        assert rig.offset() == 7


@both
async def test_markers_that_a_power_loss_took_are_written_again(second: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        producer.write("a")
        producer.write("b", "orders", 1)
        assert await producer.commit() is NONE
        rig.partition("orders", 1).sync()
        await rig.crash(power=True)
        assert rig.committed() == (["a"], ["b"])
        assert rig.state() == "CompleteCommit"


@both
async def test_a_lost_marker_is_written_again_beside_an_open_transaction_of_the_same_producer(
    second: bool,
) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        producer.write("a")
        await producer.commit()
        producer.write("open", "orders", 1)
        await rig.crash(power=True)
        assert (rig.partition().committed(), rig.state()) == (["a"], "Ongoing")
        await producer.abort()
        assert rig.partition("orders", 1).committed() == []


@both
async def test_a_lost_marker_is_written_again_after_a_later_transaction_was_decided(second: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        producer.write("a")
        await producer.commit()
        producer.write("b", "orders", 1)
        await producer.abort()
        rig.partition("orders", 1).sync()
        await rig.crash(power=True)
        assert rig.committed() == (["a"], [])


@both
async def test_an_open_transaction_is_not_taken_for_the_one_that_was_decided_before_it(second: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        producer.write("a")
        await producer.commit()
        producer.write("b")
        await rig.crash(power=True)
        assert (rig.partition().committed(), rig.state()) == (["a"], "Ongoing")
        await producer.abort()
        assert rig.partition().committed() == ["a"]


@both
@pytest.mark.parametrize("with_last_write", [False, True])
async def test_a_crash_at_the_decision_commits_all_or_nothing(second: bool, with_last_write: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        producer.write("a")
        producer.write("b", "orders", 1)
        await producer.commit_offset(7)
        before = producer.who
        rig.journal.hold()
        ending = asyncio.ensure_future(producer.end(commit=True))
        await settle()
        await rig.crash(with_last_write=with_last_write, power=True)
        await asyncio.wait([ending])
        seen = (*rig.committed(), rig.offset())
        assert seen == ((["a"], ["b"], 7) if with_last_write else ([], [], None))
        again = await rig.transactions.end(*before, commit=True, bumps=second)
        assert again.error is NONE
        seen = (*rig.committed(), rig.offset())
        assert seen == (["a"], ["b"], 7)


async def test_who_was_fenced_stays_fenced() -> None:
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


async def test_an_open_transaction_that_belongs_to_nobody_is_aborted() -> None:
    async with Rig() as rig:
        rig.partition().append(77, 3, "a")
        await rig.crash()
        assert rig.partition().open_transactions() == {}
        assert rig.partition().committed() == []


async def test_a_transaction_in_which_nothing_was_written_may_end_either_way_after_a_start() -> None:
    async with Rig() as rig:
        for commit in (True, False):
            producer = await Producer.started(rig, second=False)
            producer.write("a")
            await producer.commit()
            assert rig.transactions.add_partitions(*producer.who, [("orders", 1)]) is NONE
            rig.sync()
            await rig.crash()
            assert rig.transactions.admit(*producer.who, "orders", 1, adds=False) is NONE
            assert (await producer.end(commit=commit)).error is NONE


async def test_epochs_that_ran_out_at_the_last_end_are_known_to_have() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        rig.transactions._by_id["x"].epoch = producer.epoch = 32_766
        before = producer.who
        producer.write("a")
        answer = await producer.end(commit=True)
        await rig.crash(power=True)
        assert rig.partition().committed() == ["a"]
        assert await rig.transactions.end(*before, commit=True, bumps=True) == answer
        assert producer.write("b") is NONE


async def test_what_was_decided_about_a_partition_that_is_offline_is_kept_for_it() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        producer.write("a")
        await producer.commit()
        rig.partition().lose_power()
        rig.partition().is_lost = True
        await rig.crash()
        producer.write("b", "orders", 1)
        await producer.commit()
        rig.partition().is_lost = False
        await rig.crash()
        assert rig.committed() == (["a"], ["b"])


@both
async def test_a_marker_that_finds_no_space_at_the_start_is_written_later_and_holds_its_id_until_then(
    second: bool,
) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
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


async def test_a_snapshot_says_the_same_as_all_that_came_before_it() -> None:
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


async def test_offsets_that_wait_are_dropped_with_their_group_or_topic() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        await producer.commit_offset(1, "g")
        await producer.commit_offset(2, "h", "payments")
        await rig.groups.delete_groups(["g"])
        await rig.groups.forget_topic("payments")
        assert not rig.groups.is_unstable("g", "orders", 0)
        assert await producer.commit() is NONE
        assert (rig.offset("g"), rig.offset("h", "payments")) == (None, None)


async def test_a_group_with_offsets_that_wait_is_not_forgotten() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        await producer.commit_offset(1)
        await rig.groups.expire(rig.clock.wall_ms + 30 * 24 * 3600 * 1000)
        await producer.commit()
        assert rig.offset() == 1


async def test_an_entry_that_does_not_read_refuses_the_start() -> None:
    rig = Rig()
    rig.journal = MemoryJournal([b'{"kind":"transaction","id":"x"}'])
    with pytest.raises(DamagedState):
        rig._open()


async def test_nothing_is_served_before_the_partitions_were_asked() -> None:
    async with Rig() as rig:
        await rig.transactions.stop()
        producer = Producer(rig)
        assert (await producer.init()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert producer.write("a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await producer.commit() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert rig.transactions.describe("x") is ErrorCode.COORDINATOR_NOT_AVAILABLE
