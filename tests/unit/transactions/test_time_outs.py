"""Transactions that are open for too long."""

from __future__ import annotations

from headrace.wire.codes import ErrorCode

from .rig import Producer, Rig


async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    async with Rig() as rig:
        producer = Producer(rig, uses_v2=False)
        await producer.init(timeout_ms=10_000)
        producer.write("a")
        await rig.advance(9)
        assert rig.state() == "Ongoing"
        await rig.advance(2)
        assert (rig.state(), rig.transactions.counts["timed_out"]) == ("CompleteAbort", 1)
        assert producer.write("b") is ErrorCode.PRODUCER_FENCED
        assert await producer.commit() is ErrorCode.PRODUCER_FENCED
        assert rig.partition().committed() == []


async def test_a_producer_may_continue_after_its_transaction_timed_out() -> None:
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


async def test_timers_are_postponed_after_a_stall_of_the_broker() -> None:
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


async def test_a_restart_restarts_the_timeout_of_an_open_transaction() -> None:
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


async def test_an_abort_is_retried_if_the_journal_write_fails() -> None:
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
