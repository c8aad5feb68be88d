from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import App
from headrace.model.declarations import Flow
from headrace.model.errors import AppMistakes
from headrace.model.graph import downstream, order, writer_of


def derive(app: App, name: str, reads: list[int], writes: int) -> Flow:
    topics = [app.topics[number] for number in reads]
    return app.flow(reads=topics, writes=app.topics[writes], name=name)(lambda *frames: frames[0])


def shop(topics: int) -> App:
    app = App("shop")
    for number in range(topics):
        app.topic(f"t{number}", key="id")
    return app


def test_a_flow_comes_after_its_inputs_and_otherwise_as_declared() -> None:
    app = shop(5)
    last = derive(app, "last", [2, 3], 4)
    first = derive(app, "first", [0], 1)
    other = derive(app, "other", [0], 3)
    middle = derive(app, "middle", [1], 2)
    assert order(app) == (first, other, middle, last)
    assert downstream(app, first) == (middle, last)
    assert downstream(app, other) == (last,)
    assert downstream(app, last) == ()


def test_the_writer_of_a_topic_is_found_by_identity_not_by_name() -> None:
    app = shop(2)
    flow = derive(app, "flow", [0], 1)
    assert writer_of(app, app.topics[1]) is flow
    assert writer_of(app, app.topics[0]) is None
    assert writer_of(app, App("other").topic("t1", key="id")) is None


def test_flows_in_a_cycle_have_no_order() -> None:
    app = shop(2)
    derive(app, "there", [0], 1)
    derive(app, "back", [1], 0)
    with pytest.raises(AppMistakes, match="t0 → there → t1 → back → t0"):
        order(app)


@given(
    st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=4), min_size=8, max_size=8),
    st.permutations(range(8)),
)
def test_flows_without_cycles_are_ordered(reads: list[set[int]], declared: list[int]) -> None:
    # Flow n reads only from topics up to n and writes topic n + 1.
    app = shop(9)
    flows = {
        n: derive(app, f"f{n}", sorted({number % (n + 1) for number in reads[n]}), n + 1) for n in declared
    }
    found = [int(flow.name[1:]) for flow in order(app)]
    assert sorted(found) == list(range(8))
    for n in range(8):
        for source in {number % (n + 1) for number in reads[n]} - {0}:
            assert found.index(source - 1) < found.index(n)
    reached = {0}
    for n in range(1, 8):
        if any(source - 1 in reached for source in {number % (n + 1) for number in reads[n]}):
            reached.add(n)
    assert {int(flow.name[1:]) for flow in downstream(app, flows[0])} == reached - {0}
