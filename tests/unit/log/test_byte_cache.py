from __future__ import annotations

from headrace.log.byte_cache import ByteCache


def test_what_was_used_longest_ago_goes_when_the_limit_is_reached() -> None:
    cache: ByteCache[str] = ByteCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]
    assert cache.bytes == 8


def test_a_value_that_is_put_again_counts_once() -> None:
    cache: ByteCache[str] = ByteCache(10)
    for size in (4, 6, 5):
        cache.put("a", "A", size)
        assert cache.bytes == size
    cache.clear()
    assert (cache.bytes, cache.get("a")) == (0, None)


def test_a_value_larger_than_the_limit_is_not_kept_and_takes_nothing_else_with_it() -> None:
    cache: ByteCache[str] = ByteCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 11)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == ("A", None, 4)
