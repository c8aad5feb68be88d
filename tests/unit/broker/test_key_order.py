"""Keys keep their order when partitions are added, unless an operator forces it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.key_order import moved_share
from headrace.records import build_batch
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls
from .test_create_partitions import add_partitions, partition_count
from .test_volatile import set_config

NOW_MS = 1_700_000_000_000


def append(call: BrokerCalls, topic: str, key: bytes | None, index: int = 0, count: int = 1) -> None:
    partition = call.broker.partition(topic, index)
    assert partition is not None
    batch = build_batch([(key, b"v", [])] * count, timestamp_ms=NOW_MS)
    partition.append(bytes(batch), NOW_MS, NOW_MS)
    partition.log.sync_now()


@given(before=st.integers(1, 60), added=st.integers(1, 60))
def test_the_computed_share_of_moving_keys_matches_a_count_over_all_hashes(before: int, added: int) -> None:
    after = before + added
    hashes = range(before * after)
    moved_count = sum(key_hash % before != key_hash % after for key_hash in hashes)
    assert moved_share(before, after) == pytest.approx(moved_count / len(hashes))


async def test_the_force_config_allows_one_partition_increase_of_a_keyed_topic(call: BrokerCalls) -> None:
    await call.create("orders", 2)
    append(call, "orders", None)
    append(call, "orders", b"customer", index=1)
    assert await add_partitions(call, "orders", 3) == ErrorCode.POLICY_VIOLATION
    assert await add_partitions(call, "orders", 3, validate_only=True) == ErrorCode.POLICY_VIOLATION
    assert partition_count(call, "orders") == 2
    assert await set_config(call, "orders", "headrace.partitions.force", "true") == 0
    assert await add_partitions(call, "orders", 3, validate_only=True) == 0
    assert await add_partitions(call, "orders", 3) == 0
    assert partition_count(call, "orders") == 3
    assert await add_partitions(call, "orders", 4) == ErrorCode.POLICY_VIOLATION


async def test_partitions_can_be_added_to_a_topic_without_keyed_records(call: BrokerCalls) -> None:
    await call.create("plain")
    assert await add_partitions(call, "plain", 2) == 0
    append(call, "plain", None, count=500)
    assert await add_partitions(call, "plain", 3) == 0


async def test_a_key_is_found_at_any_position_among_a_few_batches(call: BrokerCalls) -> None:
    await call.create("late", 3)
    for _ in range(5):
        append(call, "late", None, index=2)
    append(call, "late", b"k", index=2)
    assert await add_partitions(call, "late", 4) == ErrorCode.POLICY_VIOLATION


async def test_partitions_can_be_added_to_a_topic_whose_keyed_records_were_deleted(call: BrokerCalls) -> None:
    await call.create("orders")
    append(call, "orders", b"customer")
    partition = call.broker.partition("orders", 0)
    assert partition is not None
    await partition.delete_before(1)
    assert await add_partitions(call, "orders", 2) == 0
