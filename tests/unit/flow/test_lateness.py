"""The watermark of each batch, from the events of those before it."""

from __future__ import annotations

import random
from datetime import timedelta

from headrace.flow.lateness import Watermarks
from headrace.flow.watermark import next_watermark
from headrace.model.topic import Topic

SECOND = 1_000_000


def timed(name: str, late_s: int) -> Topic:
    return Topic(name, None, ("id",), "at", timedelta(seconds=late_s))


def test_a_batch_begins_with_the_newest_event_of_those_before_it_less_what_may_be_late() -> None:
    marks = Watermarks([timed("a", 10)])
    assert marks.current_us is None
    marks.advance({"a": 100 * SECOND})
    assert marks.current_us == 90 * SECOND
    marks.advance({"a": 103 * SECOND})
    assert marks.current_us == 93 * SECOND


def test_a_watermark_never_falls_and_stays_while_nothing_comes() -> None:
    marks = Watermarks([timed("a", 10)], {"a": 50 * SECOND}, 95 * SECOND)
    for newest in ({"a": 60 * SECOND}, {"a": None}, {}, {"other": 999 * SECOND}):
        marks.advance(newest)
        assert marks.current_us == 95 * SECOND


def test_of_several_inputs_the_one_that_is_furthest_behind_counts_once_each_has_shown_a_time() -> None:
    untimed = Topic("untimed", None, ("id",))
    marks = Watermarks([timed("a", 10), timed("b", 60), untimed])
    marks.advance({"a": 100 * SECOND, "untimed": None})
    assert marks.current_us is None
    marks.advance({"b": 130 * SECOND})
    assert marks.current_us == 70 * SECOND
    marks.advance({"b": 200 * SECOND})
    assert marks.current_us == 90 * SECOND


def test_without_an_event_time_nothing_is_late() -> None:
    marks = Watermarks([Topic("untimed", None, ("id",))])
    marks.advance({"untimed": 5})
    assert marks.current_us is None


def test_the_rule_agrees_with_the_one_that_flows_run_by() -> None:
    choose = random.Random(11)
    streams = (timed("a", 7), timed("b", 0), Topic("c", None, ("id",)))
    marks, seen, watermark = Watermarks(streams), dict[str, int](), None
    for _ in range(500):
        newest = {name: choose.randrange(10**9) for name in "abc" if choose.random() < 0.4}
        for name, at in newest.items():
            seen[name] = max(at, seen.get(name, at))
        known = [one for one in (watermark, next_watermark(streams, seen)) if one is not None]
        watermark = max(known, default=None)
        marks.advance(newest)
        assert marks.current_us == watermark
