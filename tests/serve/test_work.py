"""Threads for what blocks: bounded, and never all taken by one that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from headrace.serve.errors import TooBusy
from headrace.serve.work import Work
from headrace.views.errors import QueryTimedOut


async def test_a_store_that_does_not_answer_leaves_threads_for_the_others() -> None:
    work, stuck = Work(4, 20), threading.Event()
    waiting = [asyncio.create_task(work.run(stuck.wait, 30, "stuck")) for _ in range(10)]
    try:
        for _ in range(20):
            assert await work.run(lambda: "fine", 30, "other") == "fine"
        assert work.under_way == 10
        with pytest.raises(TooBusy, match="the same store"):
            await work.run(stuck.wait, 0.01, "stuck")
        # Who gave up has given up its place in the queue.
        assert work.under_way == 10
    finally:
        stuck.set()
        assert await asyncio.gather(*waiting) == [True] * 10
    assert work.under_way == 0
    assert await work.run(lambda: "again", 30, "stuck") == "again"
    work.close()


async def test_who_waits_no_longer_gives_no_thread_back_before_it_is_free() -> None:
    work, begun, stuck = Work(1, 1), threading.Event(), threading.Event()

    def get_stuck() -> None:
        begun.set()
        stuck.wait()

    asked = asyncio.create_task(work.run(get_stuck, 30, "one"))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asked
    assert work.under_way == 1
    second = asyncio.create_task(work.run(lambda: 2, 30))
    await asyncio.sleep(0)
    with pytest.raises(TooBusy, match="2 questions"):
        await work.run(lambda: 3, 30)
    stuck.set()
    assert await second == 2
    while work.under_way:
        await asyncio.sleep(0.001)
    work.close()


async def test_what_is_raised_is_raised_here_and_a_deadline_is_told() -> None:
    work, stuck = Work(2, 2), threading.Event()
    with pytest.raises(ZeroDivisionError):
        await work.run(lambda: 1 // 0, 30)
    with pytest.raises(QueryTimedOut):
        # Two seconds of grace are taken off, so that it is over at once.
        await work.run(stuck.wait, -1.99)
    work.close()
    stuck.set()


async def test_what_is_slow_in_the_event_loop_is_not_done_there_for_a_while() -> None:
    work = Work(1, 1)
    for one in ("stalls", "drags", "fine"):
        assert work.is_quick(one)
    with pytest.raises(ZeroDivisionError):
        work.at_once(lambda: _slowly(0.11) // 0, "stalls")
    assert not work.is_quick("stalls")
    for _ in range(16):
        assert work.at_once(lambda: _slowly(0.01), "drags") == 1
    assert not work.is_quick("drags")
    assert work.is_quick("fine")
    work.close()


def _slowly(seconds: float) -> int:
    time.sleep(seconds)
    return 1
