"""The watermark of each batch follows from the events of earlier batches."""

from __future__ import annotations

import random
from datetime import timedelta

from headrace.flow.history.lateness import Watermarks
from headrace.model.declarations import LatePolicy, Topic, next_watermark

SECOND = 1_000_000


def timed(name: str, late_s: int) -> Topic:
    return Topic(name, None, ("id",), "at", timedelta(seconds=late_s))


def policies(*topics: Topic) -> dict[str, LatePolicy]:
    return {topic.name: policy for topic in topics if (policy := topic.late_policy) is not None}


def test_the_watermark_of_a_batch_is_the_newest_event_time_before_it_minus_the_allowed_lateness() -> None:
    marks = Watermarks(policies(timed("a", 10)))
    assert marks.current_us is None
    marks.advance({"a": 100 * SECOND})
    assert marks.current_us == 90 * SECOND
    marks.advance({"a": 103 * SECOND})
    assert marks.current_us == 93 * SECOND


def test_a_watermark_never_decreases_and_does_not_change_without_events() -> None:
    marks = Watermarks(policies(timed("a", 10)), {"a": 50 * SECOND}, 95 * SECOND)
    for newest in ({"a": 60 * SECOND}, {"a": None}, {}, {"other": 999 * SECOND}):
        marks.advance(newest)
        assert marks.current_us == 95 * SECOND


def test_the_slowest_input_decides_the_watermark_once_each_has_had_an_event() -> None:
    untimed = Topic("untimed", None, ("id",))
    marks = Watermarks(policies(timed("a", 10), timed("b", 60), untimed))
    marks.advance({"a": 100 * SECOND, "untimed": None})
    assert marks.current_us is None
    marks.advance({"b": 130 * SECOND})
    assert marks.current_us == 70 * SECOND
    marks.advance({"b": 200 * SECOND})
    assert marks.current_us == 90 * SECOND


def test_without_an_event_time_nothing_is_late() -> None:
    marks = Watermarks(policies(Topic("untimed", None, ("id",))))
    marks.advance({"untimed": 5})
    assert marks.current_us is None


def test_history_and_flows_compute_the_same_watermarks() -> None:
    choose = random.Random(11)
    inputs = policies(timed("a", 7), timed("b", 0), Topic("c", None, ("id",)))
    marks, seen, watermark = Watermarks(inputs), dict[str, int](), None
    for _ in range(500):
        newest = {name: choose.randrange(10**9) for name in "abc" if choose.random() < 0.4}
        for name, at in newest.items():
            seen[name] = max(at, seen.get(name, at))
        known = [mark for mark in (watermark, next_watermark(inputs, seen)) if mark is not None]
        watermark = max(known, default=None)
        marks.advance(newest)
        assert marks.current_us == watermark
