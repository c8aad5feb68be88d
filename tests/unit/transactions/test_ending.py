"""Committing and aborting: what readers see, what offsets count, and what is asked twice."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.transactions import EndAnswer, endings
from headrace.wire.codes import ErrorCode

from .rig import NONE, Producer, Rig, both, settle


@both
async def test_a_commit_shows_its_records_in_every_partition(second: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        assert [producer.write("a"), producer.write("b", "orders", 1)] == [NONE, NONE]
        assert rig.partition().committed() == []
        assert await producer.commit() is NONE
        assert rig.committed() == (["a"], ["b"])
        assert rig.state() == "CompleteCommit"


@both
async def test_an_abort_shows_nothing_and_the_next_transaction_is_whole(second: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        producer.write("a")
        assert await producer.abort() is NONE
        assert rig.state() == "CompleteAbort"
        producer.write("b")
        assert await producer.commit() is NONE
        assert rig.partition().committed() == ["b"]


async def test_the_second_protocol_raises_the_epoch_at_every_end() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        epochs = [producer.epoch]
        for commit in (True, False, True):
            producer.write("a")
            await producer.end(commit=commit)
            epochs.append(producer.epoch)
        assert epochs == [0, 1, 2, 3]


async def test_the_first_protocol_keeps_the_epoch() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=False)
        producer.write("a")
        await producer.commit()
        assert rig.partition().log[-1].epoch == producer.epoch == 0


async def test_a_late_record_of_an_ended_transaction_joins_no_other() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        producer.write("a")
        late = Producer(rig)
        late.producer, late.epoch = producer.producer, producer.epoch
        await producer.abort()
        producer.write("b")
        assert late.write("late") is ErrorCode.INVALID_PRODUCER_EPOCH
        await producer.commit()
        assert rig.partition().committed() == ["b"]


async def test_a_partition_that_was_not_added_is_not_written_to_by_the_first_protocol() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=False)
        producer.write("a")
        error = rig.transactions.admit(*producer.who, "orders", 1, adds=False)
        assert error is ErrorCode.TRANSACTION_ABORTABLE
        await producer.commit()
        error = rig.transactions.admit(*producer.who, "orders", 0, adds=False)
        assert error is ErrorCode.TRANSACTION_ABORTABLE, "it belonged to the transaction that is over"


@both
async def test_an_end_that_is_asked_again_is_answered_alike_and_the_other_end_is_refused(
    second: bool,
) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        for commit in (True, False):
            producer.write("a")
            before = producer.who
            first = await producer.end(commit=commit)
            ask = rig.transactions.end
            assert await ask(*before, commit=commit, bumps=second) == first
            other = await ask(*before, commit=not commit, bumps=second)
            assert other == EndAnswer(ErrorCode.INVALID_TXN_STATE)


async def test_an_empty_transaction_may_be_aborted_by_the_second_protocol_only() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        assert await producer.commit() is ErrorCode.INVALID_TXN_STATE
        assert (await rig.transactions.end(*producer.who, commit=False, bumps=False)).error is (
            ErrorCode.INVALID_TXN_STATE
        )
        assert (await producer.abort(), producer.epoch) == (NONE, 1)
        assert (await producer.abort(), producer.epoch) == (NONE, 2)


async def test_who_is_unknown_or_out_of_date_ends_nothing() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        producer.write("a")
        transactional_id, number, epoch = producer.who

        async def ask(*who: object) -> ErrorCode:
            return (await rig.transactions.end(*who, commit=True, bumps=True)).error  # type: ignore[arg-type]

        assert await ask(transactional_id, number, epoch + 1) is ErrorCode.PRODUCER_FENCED
        assert await ask(transactional_id, number, epoch - 1) is ErrorCode.PRODUCER_FENCED
        assert await ask(transactional_id, number + 1, epoch) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await ask("nobody", number, epoch) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await ask("", number, epoch) is ErrorCode.INVALID_REQUEST
        assert rig.state() == "Ongoing"


@both
async def test_offsets_count_from_the_commit_on_and_are_unstable_before(second: bool) -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        assert await producer.commit_offset(7) is NONE
        assert (rig.offset(), rig.groups.is_unstable("g", "orders", 0)) == (None, True)
        assert not rig.groups.is_unstable("g", "orders", 1)
        assert await producer.commit() is NONE
        assert (rig.offset(), rig.groups.is_unstable("g", "orders", 0)) == (7, False)


async def test_offsets_of_an_aborted_transaction_never_count() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        await producer.commit_offset(7)
        await producer.commit()
        await producer.commit_offset(9)
        assert await producer.abort() is NONE
        assert (rig.offset(), rig.groups.is_unstable("g", "orders", 0)) == (7, False)


async def test_an_offset_stays_unstable_while_any_transaction_may_change_it() -> None:
    async with Rig() as rig:
        one, two = Producer(rig, "x"), Producer(rig, "y")
        await one.init()
        await two.init()
        await one.commit_offset(1)
        await two.commit_offset(2)
        await one.commit()
        assert rig.groups.is_unstable("g", "orders", 0)
        await two.abort()
        assert (rig.offset(), rig.groups.is_unstable("g", "orders", 0)) == (1, False)


async def test_nothing_is_told_and_nothing_shown_before_the_decision_is_durable() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
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


async def test_who_goes_away_before_the_answer_has_ended_it_all_the_same() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        producer.write("a")
        rig.journal.hold()
        ending = asyncio.ensure_future(rig.transactions.end(*producer.who, commit=True, bumps=True))
        await settle()
        ending.cancel()
        rig.journal.release()
        await settle()
        assert (rig.state(), rig.partition().committed()) == ("CompleteCommit", ["a"])


async def test_a_journal_that_fails_leaves_the_transaction_open_and_the_client_asks_again() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
        producer.write("a")
        rig.journal.fails = True
        assert await producer.commit() is ErrorCode.NOT_COORDINATOR
        assert (rig.state(), rig.partition().committed()) == ("Ongoing", [])
        rig.journal.fails = False
        assert await producer.commit() is NONE
        assert rig.partition().committed() == ["a"]


async def test_a_marker_that_finds_no_space_holds_the_id_until_it_is_written() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig)
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
        producer = await Producer.started(rig)
        producer.write("a")
        producer.write("b", "payments")
        del rig.partitions.by_place["payments", 0], rig.topics.partitions["payments"]
        assert await producer.commit() is NONE
        assert (rig.state(), rig.partition().committed()) == ("CompleteCommit", ["a"])


async def test_a_transaction_costs_one_write_to_the_journal() -> None:
    async with Rig() as rig:
        producer = await Producer.started(rig, second=False)
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
            producer.write(producer.id)
        before = rig.journal.writes
        assert set(await asyncio.gather(*(one.commit() for one in producers))) == {NONE}
        assert rig.journal.writes <= before + 2


@both
async def test_markers_of_many_partitions_are_written_in_turns_and_nothing_else_begins_meanwhile(
    second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "_MARKED_AT_ONCE", 1)
    async with Rig() as rig:
        producer = await Producer.started(rig, second=second)
        for value, place in (("a", ("orders", 0)), ("b", ("orders", 1)), ("c", ("payments", 0))):
            assert producer.write(value, *place) is NONE
        before = producer.who
        assert await producer.commit() is NONE
        states = {rig.state()}
        assert rig.transactions.is_marking(producer.producer)
        assert (
            rig.transactions.add_partitions(*producer.who, [("orders", 0)])
            is ErrorCode.CONCURRENT_TRANSACTIONS
        )
        assert rig.transactions.admit(*before, "orders", 1, adds=True) is not NONE
        await settle()
        states.add(rig.state())
        assert states == {"PrepareCommit", "CompleteCommit"}
        assert not rig.transactions.is_marking(producer.producer)
        rig.partition().sync()
        assert rig.committed() == (["a"], ["b"])
        assert producer.write("d") is NONE
        assert await producer.abort() is NONE


async def test_a_start_writes_the_markers_that_a_stop_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "_MARKED_AT_ONCE", 1)
    async with Rig() as rig:
        producer = await Producer.started(rig)
        producer.write("a")
        producer.write("b", "orders", 1)
        assert await producer.commit() is NONE
        assert rig.state() == "PrepareCommit"
        await rig.crash()
        assert rig.state() == "CompleteCommit"
        rig.partition().sync()
        rig.partition("orders", 1).sync()
        assert rig.committed() == (["a"], ["b"])
