"""Transactions that stay open for too long."""

from __future__ import annotations

from headrace.wire.codes import ErrorCode

from .rig import Producer, Rig


async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    async with Rig() as rig:
        producer = Producer(rig, second=False)
        await producer.init(timeout_ms=10_000)
        producer.write("a")
        await rig.advance(9)
        assert rig.state() == "Ongoing"
        await rig.advance(2)
        assert (rig.state(), rig.transactions.counts["timed_out"]) == ("CompleteAbort", 1)
        assert producer.write("b") is ErrorCode.PRODUCER_FENCED
        assert await producer.commit() is ErrorCode.PRODUCER_FENCED
        assert rig.partition().committed() == []


async def test_its_producer_may_go_on_after_that_if_nobody_else_has_come() -> None:
    async with Rig() as rig:
        producer = Producer(rig)
        await producer.init(timeout_ms=10_000)
        producer.write("a")
        await rig.advance(11)
        assert await producer.commit() is ErrorCode.INVALID_TXN_STATE
        assert (await producer.init(own=True)).error is ErrorCode.NONE
        producer.write("b")
        assert await producer.commit() is ErrorCode.NONE
        assert rig.partition().committed() == ["b"]


async def test_a_wall_clock_that_jumps_aborts_nothing() -> None:
    async with Rig() as rig:
        producer = Producer(rig)
        await producer.init(timeout_ms=10_000)
        producer.write("a")
        rig.clock.wall_ms += 10 * 365 * 24 * 3600 * 1000
        await rig.advance(5)
        assert await producer.commit() is ErrorCode.NONE


async def test_a_broker_that_was_away_gives_the_time_back() -> None:
    async with Rig() as rig:
        producer = Producer(rig)
        await producer.init(timeout_ms=10_000)
        producer.write("a")
        await rig.advance(5)
        rig.clock.steady_s += 60
        rig.transactions.tick()
        await rig.advance(3)
        assert rig.state() == "Ongoing"
        await rig.advance(10)
        assert rig.state() == "CompleteAbort"


async def test_a_transaction_has_its_whole_time_again_after_a_start() -> None:
    async with Rig() as rig:
        producer = Producer(rig)
        await producer.init(timeout_ms=10_000)
        producer.write("a")
        await rig.advance(8)
        await rig.crash()
        await rig.advance(8)
        assert rig.state() == "Ongoing"
        await rig.advance(3)
        assert (rig.state(), rig.partition().committed()) == ("CompleteAbort", [])


async def test_an_abort_that_the_journal_does_not_take_is_tried_again() -> None:
    async with Rig() as rig:
        producer = Producer(rig)
        await producer.init(timeout_ms=10_000)
        producer.write("a")
        rig.journal.fails = True
        await rig.advance(12)
        assert rig.state() == "Ongoing"
        rig.journal.fails = False
        await rig.advance(2)
        assert rig.state() == "CompleteAbort"
