"""Commit and abort: visible records, effective offsets, and retries."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.transactions import EndResult, completion
from headrace.wire.codes import ErrorCode

from .rig import NONE, Producer, Rig, both_protocols, settle


@both_protocols
async def test_a_commit_shows_its_records_in_every_partition(uses_v2: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        assert [producer.write("a"), producer.write("b", "orders", 1)] == [NONE, NONE]
        assert rig.partition().committed() == []
        assert await producer.commit() is NONE
        assert rig.committed() == (["a"], ["b"])
        assert rig.state() == "CompleteCommit"


@both_protocols
async def test_an_aborted_transaction_is_invisible_and_does_not_affect_the_next(uses_v2: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        producer.write("a")
        assert await producer.abort() is NONE
        assert rig.state() == "CompleteAbort"
        producer.write("b")
        assert await producer.commit() is NONE
        assert rig.partition().committed() == ["b"]


async def test_the_second_protocol_raises_the_epoch_at_every_end() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        epochs = [producer.epoch]
        for commit in (True, False, True):
            producer.write("a")
            await producer.end(commit=commit)
            epochs.append(producer.epoch)
        assert epochs == [0, 1, 2, 3]


async def test_the_first_protocol_keeps_the_epoch() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=False)
        producer.write("a")
        await producer.commit()
        assert rig.partition().log[-1].epoch == producer.epoch == 0


async def test_a_late_record_of_an_ended_transaction_is_not_added_to_the_next_one() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        late = Producer(rig)
        late.producer_id, late.epoch = producer.producer_id, producer.epoch
        await producer.abort()
        producer.write("b")
        assert late.write("late") is ErrorCode.INVALID_PRODUCER_EPOCH
        await producer.commit()
        assert rig.partition().committed() == ["b"]


async def test_the_first_protocol_refuses_writes_to_a_partition_that_was_not_added() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=False)
        producer.write("a")
        error = rig.transactions.admit(*producer.identity, "orders", 1, may_add=False)
        assert error is ErrorCode.TRANSACTION_ABORTABLE
        await producer.commit()
        error = rig.transactions.admit(*producer.identity, "orders", 0, may_add=False)
        assert error is ErrorCode.TRANSACTION_ABORTABLE, "it belonged to the transaction that is over"


@both_protocols
async def test_a_repeated_end_gets_the_same_response_and_the_opposite_end_is_refused(
    uses_v2: bool,
) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        for commit in (True, False):
            producer.write("a")
            before = producer.identity
            first = await producer.end(commit=commit)
            call = rig.transactions.end
            assert await call(*before, commit=commit, bumps_epoch=uses_v2) == first
            other = await call(*before, commit=not commit, bumps_epoch=uses_v2)
            assert other == EndResult(ErrorCode.INVALID_TXN_STATE)


async def test_an_empty_transaction_may_be_aborted_by_the_second_protocol_only() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        assert await producer.commit() is ErrorCode.INVALID_TXN_STATE
        assert (await rig.transactions.end(*producer.identity, commit=False, bumps_epoch=False)).error is (
            ErrorCode.INVALID_TXN_STATE
        )
        assert (await producer.abort(), producer.epoch) == (NONE, 1)
        assert (await producer.abort(), producer.epoch) == (NONE, 2)


async def test_an_unknown_or_outdated_producer_ends_nothing() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        transactional_id, number, epoch = producer.identity

        async def call(*owner: object) -> ErrorCode:
            return (await rig.transactions.end(*owner, commit=True, bumps_epoch=True)).error  # type: ignore[arg-type]

        assert await call(transactional_id, number, epoch + 1) is ErrorCode.PRODUCER_FENCED
        assert await call(transactional_id, number, epoch - 1) is ErrorCode.PRODUCER_FENCED
        assert await call(transactional_id, number + 1, epoch) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await call("nobody", number, epoch) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await call("", number, epoch) is ErrorCode.INVALID_REQUEST
        assert rig.state() == "Ongoing"


@both_protocols
async def test_offsets_take_effect_at_the_commit_and_are_unstable_before(uses_v2: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        assert await producer.commit_offset(7) is NONE
        assert (rig.offset(), rig.groups.is_unstable("g", "orders", 0)) == (None, True)
        assert not rig.groups.is_unstable("g", "orders", 1)
        assert await producer.commit() is NONE
        assert (rig.offset(), rig.groups.is_unstable("g", "orders", 0)) == (7, False)


async def test_offsets_of_an_aborted_transaction_never_take_effect() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        await producer.commit_offset(7)
        await producer.commit()
        await producer.commit_offset(9)
        assert await producer.abort() is NONE
        assert (rig.offset(), rig.groups.is_unstable("g", "orders", 0)) == (7, False)


async def test_an_offset_stays_unstable_while_any_transaction_may_change_it() -> None:
    async with Rig() as rig:
        first, second = Producer(rig, "x"), Producer(rig, "y")
        await first.init()
        await second.init()
        await first.commit_offset(1)
        await second.commit_offset(2)
        await first.commit()
        assert rig.groups.is_unstable("g", "orders", 0)
        await second.abort()
        assert (rig.offset(), rig.groups.is_unstable("g", "orders", 0)) == (1, False)


async def test_no_response_and_no_record_is_sent_before_the_decision_is_durable() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        await producer.commit_offset(7)
        rig.journal.hold()
        ending = asyncio.ensure_future(producer.end(commit=True))
        await settle()
        assert not ending.done()
        assert (rig.partition().committed(), rig.offset()) == ([], None)
        assert producer.write("b", "orders", 1) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (await producer.end(commit=True)).error is ErrorCode.CONCURRENT_TRANSACTIONS
        rig.journal.release()
        assert (await ending).error is NONE
        assert (rig.partition().committed(), rig.offset()) == (["a"], 7)


async def test_a_transaction_ends_although_its_client_disconnects() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        rig.journal.hold()
        ending = asyncio.ensure_future(
            rig.transactions.end(*producer.identity, commit=True, bumps_epoch=True)
        )
        await settle()
        ending.cancel()
        rig.journal.release()
        await settle()
        assert (rig.state(), rig.partition().committed()) == ("CompleteCommit", ["a"])


async def test_a_failing_journal_leaves_the_transaction_open_and_the_client_retries() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        rig.journal.fails = True
        assert await producer.commit() is ErrorCode.NOT_COORDINATOR
        assert (rig.state(), rig.partition().committed()) == ("Ongoing", [])
        rig.journal.fails = False
        assert await producer.commit() is NONE
        assert rig.partition().committed() == ["a"]


async def test_a_transactional_id_is_blocked_until_its_failed_marker_is_written() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        producer.write("b", "orders", 1)
        rig.partition().is_full = True
        assert await producer.commit() is NONE
        assert rig.state() == "PrepareCommit"
        assert producer.write("c", "payments") is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (await producer.init()).error is ErrorCode.CONCURRENT_TRANSACTIONS
        rig.partition().is_full = False
        await rig.advance(2)
        assert (rig.state(), rig.partition().committed()) == ("CompleteCommit", ["a"])
        assert producer.write("c", "payments") is NONE


async def test_a_topic_that_was_deleted_needs_no_marker() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        producer.write("b", "payments")
        del rig.partitions.by_topic_and_index["payments", 0], rig.topics.partitions["payments"]
        assert await producer.commit() is NONE
        assert (rig.state(), rig.partition().committed()) == ("CompleteCommit", ["a"])


async def test_a_transaction_costs_one_write_to_the_journal() -> None:
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=False)
        before = rig.journal.writes
        for _ in range(10):
            producer.write("a")
            producer.write("b", "orders", 1)
            assert await producer.commit() is NONE
        assert rig.journal.writes == before + 10


async def test_transactions_that_end_together_share_their_writes() -> None:
    async with Rig() as rig:
        producers = [Producer(rig, f"id-{number}") for number in range(20)]
        for producer in producers:
            await producer.init()
            producer.write(producer.transactional_id)
        before = rig.journal.writes
        assert set(await asyncio.gather(*(committing.commit() for committing in producers))) == {NONE}
        assert rig.journal.writes <= before + 2


@both_protocols
async def test_no_transaction_begins_while_markers_are_written_in_several_loop_iterations(
    uses_v2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_MARKERS_PER_STEP", 1)
    async with Rig() as rig:
        producer = await Producer.create(rig, uses_v2=uses_v2)
        for value, partition in (("a", ("orders", 0)), ("b", ("orders", 1)), ("c", ("payments", 0))):
            assert producer.write(value, *partition) is NONE
        before = producer.identity
        assert await producer.commit() is NONE
        states = {rig.state()}
        assert rig.transactions.is_marking(producer.producer_id)
        assert (
            rig.transactions.add_partitions(*producer.identity, [("orders", 0)])
            is ErrorCode.CONCURRENT_TRANSACTIONS
        )
        assert rig.transactions.admit(*before, "orders", 1, may_add=True) is not NONE
        await settle()
        states.add(rig.state())
        assert states == {"PrepareCommit", "CompleteCommit"}
        assert not rig.transactions.is_marking(producer.producer_id)
        rig.partition().sync()
        assert rig.committed() == (["a"], ["b"])
        assert producer.write("d") is NONE
        assert await producer.abort() is NONE


async def test_a_start_writes_the_markers_that_were_missing_at_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completion, "_MARKERS_PER_STEP", 1)
    async with Rig() as rig:
        producer = await Producer.create(rig)
        producer.write("a")
        producer.write("b", "orders", 1)
        assert await producer.commit() is NONE
        assert rig.state() == "PrepareCommit"
        await rig.crash()
        assert rig.state() == "CompleteCommit"
        rig.partition().sync()
        rig.partition("orders", 1).sync()
        assert rig.committed() == (["a"], ["b"])
