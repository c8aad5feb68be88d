"""The ranges of a sample: within the limit, without overlap, with the first and the last records."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.sample import windows

RANGES = st.dictionaries(
    st.integers(0, 40),
    st.tuples(st.integers(0, 1_000), st.integers(1, 100_000)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=30,
)


@given(RANGES, st.integers(1, 3_000))
def test_windows_are_disjoint_within_the_limit_and_include_both_ends(
    ranges: dict[int, tuple[int, int]], records_max: int
) -> None:
    covered: dict[int, set[int]] = {number: set() for number in ranges}
    for window in windows(ranges, records_max):
        for number, (begin, end) in window.items():
            offsets = set(range(begin, end))
            assert offsets
            assert not offsets & covered[number]
            covered[number] |= offsets
    total = sum(map(len, covered.values()))
    offsets = sum(end - start for start, end in ranges.values())
    assert total <= max(records_max, 4)
    if offsets <= records_max:
        assert total == offsets
    for number, (start, end) in sorted(ranges.items())[: max(1, records_max // 4)]:
        assert {start, end - 1} <= covered[number]


def test_the_records_of_a_large_partition_are_evenly_spread() -> None:
    spread = [window[0] for window in windows({0: (0, 1_000_000)}, 2_000)]
    assert spread[:2] == [(0, 250), (999_750, 1_000_000)]
    begins = sorted(begin for begin, _ in spread)
    assert {after - before for before, after in pairwise(begins)} <= {142_821, 142_822}
