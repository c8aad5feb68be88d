"""The share of the server that one token may use, and the order of waiting tokens."""

from __future__ import annotations

import asyncio

import pytest

from headrace.serve.errors import TokenQuotaExceeded, TooBusy
from headrace.serve.http.limits import TokenQuota
from headrace.serve.sql.pool import FairSlots


def test_a_token_may_use_its_share_and_no_more() -> None:
    quota = TokenQuota("searches", 4, 50)
    with quota.held("greedy"), quota.held("greedy"):
        with pytest.raises(TokenQuotaExceeded, match=r"too many searches with this token \(limit 2\)"):
            quota.expect_share("greedy")
        quota.expect_share("other")
        assert quota.count == 2
    quota.expect_share("greedy")
    assert quota.count == 0


def test_a_token_may_use_at_least_one_slot() -> None:
    quota = TokenQuota("searches", 1, 1)
    quota.expect_share("one")
    quota.take("one")
    with pytest.raises(TokenQuotaExceeded):
        quota.expect_share("one")


def test_without_tokens_one_client_may_use_everything() -> None:
    quota = TokenQuota("searches", 4, 25)
    for _ in range(4):
        quota.expect_share("")
        quota.take("")
    assert quota.is_full


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_token_at_its_share_waits_while_another_token_runs() -> None:
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


async def test_waiting_tokens_take_turns() -> None:
    slots = FairSlots(1, 50, 50)
    await slots.acquire("greedy")
    order: list[str] = []

    async def run(token_id: str) -> None:
        await slots.acquire(token_id)
        order.append(token_id)
        slots.release(token_id)

    tasks = [asyncio.create_task(run(token)) for token in ("greedy", "greedy", "greedy", "other", "third")]
    await _settle()
    slots.release("greedy")
    await asyncio.gather(*tasks)
    assert order == ["greedy", "other", "third", "greedy", "greedy"]


async def test_a_cancelled_waiter_leaves_the_queue_or_releases_its_new_slot() -> None:
    slots = FairSlots(1, 50, 100)
    await slots.acquire("a")
    waiting, next_waiter = (asyncio.create_task(slots.acquire(token)) for token in ("b", "c"))
    await _settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert slots.waiting == 1
    slots.release("a")
    next_waiter.cancel()
    await asyncio.gather(next_waiter, return_exceptions=True)
    assert slots.waiting == 0
    await asyncio.wait_for(slots.acquire("a"), 5)


async def test_the_queue_has_a_limit_for_all_and_one_for_each_token() -> None:
    slots = FairSlots(1, 4, 50)
    await slots.acquire("")
    waiting = [asyncio.create_task(slots.acquire("greedy")) for _ in range(2)]
    await _settle()
    with pytest.raises(TokenQuotaExceeded, match="limit 2"):
        await slots.acquire("greedy")
    waiting += [asyncio.create_task(slots.acquire("")) for _ in range(2)]
    await _settle()
    with pytest.raises(TooBusy, match="limit 4"):
        await slots.acquire("other")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_without_tokens_one_client_may_use_every_slot() -> None:
    slots = FairSlots(2, 1, 50)
    await slots.acquire("")
    await asyncio.wait_for(slots.acquire(""), 5)
