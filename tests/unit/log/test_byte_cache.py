from __future__ import annotations

from headrace.log.archive_store import ByteCache


def test_the_least_recently_used_value_is_evicted_at_the_limit() -> None:
    cache: ByteCache[str] = ByteCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]
    assert cache.bytes == 8


def test_a_replaced_value_counts_once() -> None:
    cache: ByteCache[str] = ByteCache(10)
    for size in (4, 6, 5):
        cache.put("a", "A", size)
        assert cache.bytes == size
    cache.clear()
    assert (cache.bytes, cache.get("a")) == (0, None)


def test_a_value_larger_than_the_limit_is_not_stored_and_evicts_nothing() -> None:
    cache: ByteCache[str] = ByteCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 11)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == ("A", None, 4)
