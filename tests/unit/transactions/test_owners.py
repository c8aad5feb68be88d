"""The owner of a transactional id: fencing, retries, and epochs that run out."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.transactions import InitResult, TransactionSettings
from headrace.wire.codes import ErrorCode

from .rig import MINUTE_MS, Producer, Rig, settle

POLICY = ErrorCode.POLICY_VIOLATION
NONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED


async def test_a_new_id_gets_a_producer_at_epoch_0_and_a_successor_the_next_epoch() -> None:
    async with Rig() as rig:
        first, second = Producer(rig), Producer(rig)
        assert (await first.init()).epoch == 0
        assert (await second.init()).epoch == 1
        assert first.producer_id == second.producer_id


async def test_a_successor_aborts_the_open_transaction_and_fences_its_predecessor() -> None:
    async with Rig() as rig:
        zombie, successor = Producer(rig), Producer(rig)
        await zombie.init()
        zombie.write("a")
        await zombie.commit_offset(7)
        assert await successor.init() == InitResult(NONE, zombie.producer_id, 2)
        assert (rig.state(), rig.groups.is_unstable("g", "orders", 0)) == ("Empty", False)
        assert zombie.write("b") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert zombie.write("b", "orders", 1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.commit() is FENCED
        assert await zombie.abort() is FENCED
        assert await zombie.commit_offset(8) is FENCED
        assert (await zombie.init(own=True)).error is FENCED
        successor.write("c")
        assert await successor.commit() is NONE
        assert (rig.partition().committed(), rig.offset()) == (["c"], None)


async def test_a_fenced_producer_is_counted_at_every_request_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Rig() as rig:
        zombie, successor = Producer(rig), Producer(rig)
        await zombie.init()
        await successor.init()
        for _ in range(3):
            zombie.write("a")
            await zombie.commit()
        assert rig.transactions.counts == {"committed": 0, "aborted": 0, "timed_out": 0, "fenced": 6}
        assert [line.count("fenced") for line in caplog.messages] == [1]
        assert "the request has epoch 0, but the current epoch is 1" in caplog.messages[0]


async def test_the_coordinator_counts_commits_and_aborts_and_ids_by_state() -> None:
    async with Rig() as rig:
        for number, commit in enumerate((True, True, False)):
            producer = await Producer.create(rig, f"id-{number}")
            producer.write("a")
            await producer.end(commit=commit)
        assert rig.transactions.counts == {"committed": 2, "aborted": 1, "timed_out": 0, "fenced": 0}
        assert rig.transactions.count_by_state() == {"CompleteCommit": 2, "CompleteAbort": 1}


async def test_a_producer_continues_after_an_error_with_its_own_id_and_may_retry() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        number, epoch = producer.producer_id, producer.epoch
        assert await rig.transactions.init("x", MINUTE_MS, number, epoch) == InitResult(NONE, number, 1)
        assert await rig.transactions.init("x", MINUTE_MS, number, epoch) == InitResult(NONE, number, 1)
        assert (await rig.transactions.init("x", MINUTE_MS, number, 1)).epoch == 2
        assert (await rig.transactions.init("x", MINUTE_MS, number, epoch)).error is FENCED
        assert (await rig.transactions.init("x", MINUTE_MS, number, 9)).error is FENCED
        assert (await rig.transactions.init("x", MINUTE_MS, number + 9, 2)).error is FENCED


async def test_a_zombie_that_tries_to_continue_changes_nothing() -> None:
    async with Rig() as rig:
        zombie, successor = Producer(rig), Producer(rig)
        await zombie.init()
        await successor.init()
        successor.write("a")
        assert (await zombie.init(own=True)).error is FENCED
        assert await successor.commit() is NONE
        assert rig.partition().committed() == ["a"]


async def test_a_producer_that_continues_after_an_error_aborts_its_open_transaction() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        assert (await producer.init(own=True)).epoch == 1
        producer.write("b")
        await producer.commit()
        assert rig.partition().committed() == ["b"]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_an_invalid_or_too_long_time_out_is_refused(timeout_ms: int) -> None:
    async with Rig() as rig:
        answer = await Producer(rig).init(timeout_ms=timeout_ms)
        assert answer == InitResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)


async def test_a_request_for_an_id_that_is_being_assigned_is_retriable() -> None:
    async with Rig() as rig:
        rig.journal.hold()
        first = asyncio.ensure_future(Producer(rig).init())
        await settle()
        assert (await Producer(rig).init()).error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (rig.state(), rig.transactions.list_transactions()) == (None, [])
        rig.journal.release()
        assert (await first).epoch == 0


async def test_a_failed_write_of_an_owner_leaves_no_transactional_id() -> None:
    async with Rig() as rig:
        rig.journal.fails = True
        assert (await Producer(rig).init()).error is ErrorCode.NOT_COORDINATOR
        rig.journal.fails = False
        rig.ids.fails = True
        assert (await Producer(rig).init()).error is ErrorCode.NOT_COORDINATOR
        rig.ids.fails = False
        assert rig.state() is None
        assert (await Producer(rig).init()).epoch == 0


async def at_epoch(rig: Rig, epoch: int) -> Producer:
    """Set the epoch of a producer directly, because reaching it by transactions would take long."""
    producer = await Producer.create(rig)
    rig.transactions._by_id["x"].epoch = producer.epoch = epoch
    return producer


async def test_a_producer_that_has_used_all_epochs_continues_with_a_new_producer_id() -> None:
    async with Rig() as rig:
        producer = await at_epoch(rig, 32_766)
        before = producer.identity
        producer.write("a")
        answer = await producer.end(commit=True)
        assert (answer.error, answer.producer_id != before[1], answer.epoch) == (NONE, True, 0)
        assert rig.partition().log[-1].epoch == 32_767
        assert await rig.transactions.end(*before, commit=True, bumps_epoch=True) == answer
        producer.write("b")
        assert await producer.commit() is NONE
        assert rig.partition().committed() == ["a", "b"]


async def test_a_new_owner_gets_a_new_producer_id_if_all_epochs_are_used() -> None:
    async with Rig() as rig:
        producer = await at_epoch(rig, 32_766)
        producer.write("a")
        successor = Producer(rig)
        answer = await successor.init()
        assert (answer.epoch, answer.producer_id != producer.producer_id) == (0, True)
        assert producer.write("b") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert rig.partition().committed() == []


async def test_a_producer_that_has_used_all_epochs_may_retry_its_request() -> None:
    async with Rig() as rig:
        producer = await at_epoch(rig, 32_766)
        number = producer.producer_id
        first = await rig.transactions.init("x", MINUTE_MS, number, 32_766)
        assert (first.error, first.epoch) == (NONE, 0)
        assert await rig.transactions.init("x", MINUTE_MS, number, 32_766) == first


async def test_ids_partitions_and_groups_are_limited() -> None:
    limits = TransactionSettings(
        ids_max=2, partitions_per_transaction_max=2, groups_per_transaction_max=1, id_chars_max=5
    )
    async with Rig(limits) as rig:
        producer = await Producer.create(rig, "x")
        await Producer(rig, "y").init()
        assert (await Producer(rig, "z").init()).error is ErrorCode.POLICY_VIOLATION
        assert (await Producer(rig, "x" * 6).init()).error is ErrorCode.INVALID_REQUEST
        assert producer.write("a") is NONE
        assert producer.write("a", "orders", 1) is NONE
        assert producer.write("a", "payments") is ErrorCode.POLICY_VIOLATION
        assert rig.transactions.add_group(*producer.identity, "g") is NONE
        assert rig.transactions.add_group(*producer.identity, "h") is ErrorCode.POLICY_VIOLATION


async def test_partitions_of_all_open_transactions_are_limited_and_released_at_the_end() -> None:
    async with Rig(TransactionSettings(all_partitions_max=2)) as rig:
        first, second = Producer(rig, "x"), Producer(rig, "y")
        await first.init()
        await second.init()
        assert [first.write("a"), first.write("a", "orders", 1)] == [NONE, NONE]
        assert second.write("b") is ErrorCode.POLICY_VIOLATION
        await first.commit()
        assert second.write("b") is NONE


async def test_an_unused_id_expires_also_on_disk() -> None:
    async with Rig() as rig:
        rested, busy = Producer(rig, "rested"), Producer(rig, "busy")
        await rested.init()
        await busy.init()
        busy.write("a")
        later = rig.clock.wall_ms + 7 * 24 * 60 * MINUTE_MS
        assert await rig.transactions.expire(later - 1) == []
        assert await rig.transactions.expire(later) == ["rested"]
        await rig.crash()
        assert (rig.state("rested"), rig.state("busy")) == (None, "Ongoing")
        assert rested.write("b") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_all_transactional_ids_together_have_a_limit_in_bytes() -> None:
    async with Rig(TransactionSettings(all_ids_bytes_max=30)) as rig:
        assert (await rig.transactions.init("x" * 20, MINUTE_MS)).error is NONE
        assert (await rig.transactions.init("y" * 11, MINUTE_MS)).error is POLICY
        # One character outside ASCII makes every character four bytes wide in memory.
        assert (await rig.transactions.init("zzé", MINUTE_MS)).error is POLICY
        assert (await rig.transactions.init("z" * 10, MINUTE_MS)).error is NONE
        assert (await rig.transactions.init("x" * 20, MINUTE_MS)).error is NONE
        await rig.crash()
        assert (await rig.transactions.init("y", MINUTE_MS)).error is POLICY


async def test_a_failed_write_of_an_owner_frees_the_memory_of_the_id() -> None:
    async with Rig(TransactionSettings(all_ids_bytes_max=30)) as rig:
        rig.ids.fails = True
        assert (await rig.transactions.init("x" * 20, MINUTE_MS)).error is ErrorCode.NOT_COORDINATOR
        rig.ids.fails = False
        assert (await rig.transactions.init("y" * 20, MINUTE_MS)).error is NONE


async def test_groups_of_open_transactions_have_a_limit_in_bytes() -> None:
    async with Rig(TransactionSettings(all_groups_bytes_max=1_000)) as rig:
        first, second = await Producer.create(rig, "one"), await Producer.create(rig, "two")

        def add(producer: Producer, group_id: str) -> ErrorCode:
            return rig.transactions.add_group(*producer.identity, group_id)

        assert add(first, "g" * 1_025) is ErrorCode.INVALID_GROUP_ID
        assert add(first, "g" * 700) is NONE
        assert add(first, "g" * 700) is NONE
        assert add(second, "h" * 100) is POLICY
        assert await first.commit() is NONE
        assert add(second, "h" * 100) is NONE
