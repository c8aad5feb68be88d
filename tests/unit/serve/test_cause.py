"""Which part is the bottleneck: of chains in which one is slow, was killed, or takes the machine from the others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serve.observed.cause import Worker, causes


def _chain(length: int) -> list[tuple[str, str]]:
    """Flows with topics in between, as an app has them."""
    names = [name for at in range(length) for name in (f"topic:{at}", f"flow:{at}")]
    return list(itertools.pairwise(names))


def _keeps_up(at: int, seconds: float = 0.5) -> Worker:
    return Worker(f"flow:{at}", "working", 10, seconds, 100.0, 100.0)


def _slow(at: int, seconds: float = 20.0) -> Worker:
    return Worker(f"flow:{at}", "working", 2_000, seconds, 100.0, 20.0)


def _starved(at: int) -> Worker:
    return Worker(f"flow:{at}", "working", 0, 0.0, 0.0, 0.0)


@given(length=st.integers(1, 6), data=st.data())
def test_in_a_chain_with_one_slow_part_it_alone_is_the_cause(length: int, data: st.DataObject) -> None:
    slow = data.draw(st.integers(0, length - 1))
    seconds = data.draw(st.floats(6, 10_000))
    workers = [
        _slow(at, seconds)
        if at == slow
        # Before it parts keep up, or have a little less of the machine; behind it they starve, or do so too.
        else data.draw(st.sampled_from([_keeps_up(at), _starved(at), _slow(at, seconds * 0.9)]))
        for at in range(length)
    ]
    assert causes(data.draw(st.permutations(workers)), _chain(length)) == {f"flow:{slow}"}


@given(length=st.integers(2, 6), data=st.data())
def test_a_part_that_has_ended_is_the_cause_and_those_that_starve_or_wait_behind_it_are_not(
    length: int, data: st.DataObject
) -> None:
    ended = data.draw(st.integers(0, length - 1))
    behind = st.sampled_from(["starved", "waits"])
    workers = [
        Worker(f"flow:{at}", "ended", 5_000, 600.0)
        if at == ended
        else _keeps_up(at)
        if at < ended or data.draw(behind) == "starved"
        else Worker(f"flow:{at}", "starting", 5_000, 600.0)
        for at in range(length)
    ]
    assert causes(workers, _chain(length)) == {f"flow:{ended}"}


def test_the_second_of_three_is_slow_and_coloured_alone() -> None:
    assert causes([_keeps_up(0), _slow(1), _starved(2)], _chain(3)) == {"flow:1"}


def test_parts_on_different_ways_are_causes_each_by_itself() -> None:
    edges = [("topic:a", "flow:0"), ("topic:b", "flow:1")]
    assert causes([_slow(0, 10), _slow(1, 900)], edges) == {"flow:0", "flow:1"}


def test_a_slow_part_is_found_beside_one_that_has_ended() -> None:
    workers = [_slow(0), Worker("flow:1", "ended")]
    assert causes(workers, _chain(2)) == {"flow:0", "flow:1"}


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        (Worker("flow:0", "working", 50_000, 4.0, 900.0, 10.0), False),
        (Worker("flow:0", "working", 50_000, 6.0, 900.0, 10.0), True),
        # It catches up: after half a minute behind it is told all the same.
        (Worker("flow:0", "working", 50_000, 29.0, 10.0, 900.0), False),
        (Worker("flow:0", "working", 50_000, 31.0, 10.0, 900.0), True),
        # Nothing is unread, whatever the age was.
        (Worker("flow:0", "working", 0, 900.0, 10.0, 0.0), False),
        # Of what is not known nothing is said.
        (Worker("flow:0", "working"), False),
        (Worker("flow:0", "working", 6_000, None, 100.0, 10.0), True),
    ],
)
def test_a_batch_under_way_is_not_yet_behind_and_a_large_backlog_is(worker: Worker, expected: bool) -> None:
    assert bool(causes([worker], [])) is expected


def test_what_was_a_cause_is_one_until_it_has_caught_up() -> None:
    between_batches = Worker("flow:0", "working", 900, 4.0, 100.0, 400.0)
    assert causes([between_batches], []) == frozenset()
    assert causes([between_batches], [], {"flow:0"}) == {"flow:0"}
    assert causes([_keeps_up(0)], [], {"flow:0"}) == frozenset()
