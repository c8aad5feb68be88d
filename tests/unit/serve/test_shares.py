"""What one token may take of the server, and whose turn it is."""

from __future__ import annotations

import asyncio

import pytest

from headrace.serve.errors import ShareTaken, TooBusy
from headrace.serve.shares import Shares
from headrace.serve.sql.slots import FairSlots


def test_a_token_takes_its_share_and_no_more() -> None:
    shares = Shares("searches", 4, 50)
    with shares.held("greedy"), shares.held("greedy"):
        with pytest.raises(ShareTaken, match=r"too many searches with this token \(limit 2\)"):
            shares.expect_share("greedy")
        shares.expect_share("other")
        assert shares.count == 2
    shares.expect_share("greedy")
    assert shares.count == 0


def test_one_is_left_for_each_token_however_small_the_share() -> None:
    shares = Shares("searches", 1, 1)
    shares.expect_share("one")
    shares.take("one")
    with pytest.raises(ShareTaken):
        shares.expect_share("one")


def test_without_tokens_all_of_it_may_be_taken() -> None:
    shares = Shares("searches", 4, 25)
    for _ in range(4):
        shares.expect_share("")
        shares.take("")
    assert shares.is_full


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_token_with_its_share_of_the_slots_waits_while_another_runs_at_once() -> None:
    slots = FairSlots(2, 50, 50)
    await slots.acquire("greedy")
    second = asyncio.create_task(slots.acquire("greedy"))
    await _settle()
    assert not second.done()
    await asyncio.wait_for(slots.acquire("other"), 5)
    slots.release("other")
    await _settle()
    assert not second.done()
    slots.release("greedy")
    await asyncio.wait_for(second, 5)


async def test_tokens_that_wait_take_turns() -> None:
    slots = FairSlots(1, 50, 50)
    await slots.acquire("greedy")
    order: list[str] = []

    async def run(token_id: str) -> None:
        await slots.acquire(token_id)
        order.append(token_id)
        slots.release(token_id)

    tasks = [asyncio.create_task(run(one)) for one in ("greedy", "greedy", "greedy", "other", "third")]
    await _settle()
    slots.release("greedy")
    await asyncio.gather(*tasks)
    assert order == ["greedy", "other", "third", "greedy", "greedy"]


async def test_a_waiter_that_is_cancelled_leaves_its_place_and_one_that_was_chosen_gives_its_slot_back() -> (
    None
):
    slots = FairSlots(1, 50, 100)
    await slots.acquire("a")
    waiting, chosen = (asyncio.create_task(slots.acquire(one)) for one in ("b", "c"))
    await _settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert slots.waiting == 1
    slots.release("a")
    chosen.cancel()
    await asyncio.gather(chosen, return_exceptions=True)
    assert slots.waiting == 0
    await asyncio.wait_for(slots.acquire("a"), 5)


async def test_the_queue_has_a_limit_for_all_and_one_for_each_token() -> None:
    slots = FairSlots(1, 4, 50)
    await slots.acquire("")
    waiting = [asyncio.create_task(slots.acquire("greedy")) for _ in range(2)]
    await _settle()
    with pytest.raises(ShareTaken, match="limit 2"):
        await slots.acquire("greedy")
    waiting += [asyncio.create_task(slots.acquire("")) for _ in range(2)]
    await _settle()
    with pytest.raises(TooBusy, match="limit 4"):
        await slots.acquire("other")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_without_tokens_every_slot_may_be_taken() -> None:
    slots = FairSlots(2, 1, 50)
    await slots.acquire("")
    await asyncio.wait_for(slots.acquire(""), 5)
