"""The bottleneck of chains in which one part is slow, was killed, or takes the CPU from the others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serve.monitor.cause import PartLag, causes


def _chain(length: int) -> list[tuple[str, str]]:
    """The edges of a chain of flows with topics between them."""
    names = [name for at in range(length) for name in (f"topic:{at}", f"flow:{at}")]
    return list(itertools.pairwise(names))


def _keeps_up(at: int, seconds: float = 0.5) -> PartLag:
    return PartLag(f"flow:{at}", "working", 10, seconds, 100.0, 100.0)


def _slow(at: int, seconds: float = 20.0) -> PartLag:
    return PartLag(f"flow:{at}", "working", 2_000, seconds, 100.0, 20.0)


def _starved(at: int) -> PartLag:
    return PartLag(f"flow:{at}", "working", 0, 0.0, 0.0, 0.0)


@given(length=st.integers(1, 6), data=st.data())
def test_the_only_slow_part_of_a_chain_is_the_only_cause(length: int, data: st.DataObject) -> None:
    slow = data.draw(st.integers(0, length - 1))
    seconds = data.draw(st.floats(6, 10_000))
    part_lags = [
        _slow(at, seconds)
        if at == slow
        # The other parts keep up, wait for input, or are a little slower because they share the CPU.
        else data.draw(st.sampled_from([_keeps_up(at), _starved(at), _slow(at, seconds * 0.9)]))
        for at in range(length)
    ]
    assert causes(data.draw(st.permutations(part_lags)), _chain(length)) == {f"flow:{slow}"}


@given(length=st.integers(2, 6), data=st.data())
def test_a_part_that_has_ended_is_the_cause_and_parts_that_wait_for_it_are_not(
    length: int, data: st.DataObject
) -> None:
    ended = data.draw(st.integers(0, length - 1))
    behind = st.sampled_from(["starved", "waits"])
    part_lags = [
        PartLag(f"flow:{at}", "ended", 5_000, 600.0)
        if at == ended
        else _keeps_up(at)
        if at < ended or data.draw(behind) == "starved"
        else PartLag(f"flow:{at}", "starting", 5_000, 600.0)
        for at in range(length)
    ]
    assert causes(part_lags, _chain(length)) == {f"flow:{ended}"}


def test_if_part_two_of_three_is_slow_it_is_the_only_cause() -> None:
    assert causes([_keeps_up(0), _slow(1), _starved(2)], _chain(3)) == {"flow:1"}


def test_parts_on_separate_paths_are_separate_causes() -> None:
    edges = [("topic:a", "flow:0"), ("topic:b", "flow:1")]
    assert causes([_slow(0, 10), _slow(1, 900)], edges) == {"flow:0", "flow:1"}


def test_a_slow_part_and_an_ended_part_are_both_causes() -> None:
    part_lags = [_slow(0), PartLag("flow:1", "ended")]
    assert causes(part_lags, _chain(2)) == {"flow:0", "flow:1"}


@pytest.mark.parametrize(
    ("part_lag", "expected"),
    [
        (PartLag("flow:0", "working", 50_000, 4.0, 900.0, 10.0), False),
        (PartLag("flow:0", "working", 50_000, 6.0, 900.0, 10.0), True),
        # The part catches up. It is reported nevertheless once it is more than half a minute behind.
        (PartLag("flow:0", "working", 50_000, 29.0, 10.0, 900.0), False),
        (PartLag("flow:0", "working", 50_000, 31.0, 10.0, 900.0), True),
        # No record is unread, so the age does not matter.
        (PartLag("flow:0", "working", 0, 900.0, 10.0, 0.0), False),
        # Lag and age are unknown.
        (PartLag("flow:0", "working"), False),
        (PartLag("flow:0", "working", 6_000, None, 100.0, 10.0), True),
    ],
)
def test_the_lag_of_one_batch_does_not_count_as_behind_but_a_large_lag_does(
    part_lag: PartLag, expected: bool
) -> None:
    assert bool(causes([part_lag], [])) is expected


def test_a_part_remains_a_cause_until_it_has_caught_up() -> None:
    between_batches = PartLag("flow:0", "working", 900, 4.0, 100.0, 400.0)
    assert causes([between_batches], []) == frozenset()
    assert causes([between_batches], [], {"flow:0"}) == {"flow:0"}
    assert causes([_keeps_up(0)], [], {"flow:0"}) == frozenset()
