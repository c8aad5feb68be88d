"""Keys keep their order when partitions are added, or somebody has said that they need not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.key_order import share_that_moves
from headrace.records import build_batch
from headrace.wire.codes import ErrorCode

from .desk import Asking
from .test_create_partitions import grow, partitions
from .test_volatile import set_config

NOW_MS = 1_700_000_000_000


def append(ask: Asking, topic: str, key: bytes | None, index: int = 0, count: int = 1) -> None:
    partition = ask.broker.partition(topic, index)
    assert partition is not None
    batch = build_batch([(key, b"v", [])] * count, timestamp_ms=NOW_MS)
    partition.append(bytes(batch), NOW_MS, NOW_MS)
    partition.log.sync_now()


@given(before=st.integers(1, 60), more=st.integers(1, 60))
def test_the_share_of_keys_that_move_is_what_counting_them_gives(before: int, more: int) -> None:
    after = before + more
    hashes = range(before * after)
    moved = sum(one % before != one % after for one in hashes)
    assert share_that_moves(before, after) == pytest.approx(moved / len(hashes))


async def test_a_topic_with_keyed_records_grows_only_when_told_to_and_then_once(ask: Asking) -> None:
    await ask.create("orders", 2)
    append(ask, "orders", None)
    append(ask, "orders", b"customer", index=1)
    assert await grow(ask, "orders", 3) == ErrorCode.POLICY_VIOLATION
    assert await grow(ask, "orders", 3, validate_only=True) == ErrorCode.POLICY_VIOLATION
    assert partitions(ask, "orders") == 2
    assert await set_config(ask, "orders", "headrace.partitions.force", "true") == 0
    assert await grow(ask, "orders", 3, validate_only=True) == 0
    assert await grow(ask, "orders", 3) == 0
    assert partitions(ask, "orders") == 3
    assert await grow(ask, "orders", 4) == ErrorCode.POLICY_VIOLATION


async def test_a_topic_without_keys_or_without_records_grows_freely(ask: Asking) -> None:
    await ask.create("plain")
    assert await grow(ask, "plain", 2) == 0
    append(ask, "plain", None, count=500)
    assert await grow(ask, "plain", 3) == 0


async def test_a_key_is_found_wherever_it_stands_among_a_few_batches(ask: Asking) -> None:
    await ask.create("late", 3)
    for _ in range(5):
        append(ask, "late", None, index=2)
    append(ask, "late", b"k", index=2)
    assert await grow(ask, "late", 4) == ErrorCode.POLICY_VIOLATION


async def test_a_topic_whose_keyed_records_were_deleted_grows_freely(ask: Asking) -> None:
    await ask.create("orders")
    append(ask, "orders", b"customer")
    partition = ask.broker.partition("orders", 0)
    assert partition is not None
    await partition.delete_before(1)
    assert await grow(ask, "orders", 2) == 0
