"""When something is lost, against a small simulation of a topic, its retention and a reader."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.ops.lag.loss import Loss, Unread, loss_of, soonest
from headrace.ops.lag.rates import Rate, Rates
from headrace.ops.lag.retention import Retention, retention_of

NEVER = Loss("never")


def simulated_s(retention: Retention, unread: Unread, step_s: float, until_s: float) -> float | None:
    """When retention first reaches what is unread. Records were and are written evenly, and read evenly."""
    assert unread.age_s is not None
    assert unread.bytes is not None
    each = unread.bytes / unread.records
    written_per_s = unread.records / unread.age_s
    steps = int(until_s / step_s)
    for number in range(1, steps):
        now = number * step_s
        read = unread.taken_per_s * now
        # Where the removal is, counted from the first unread record.
        if retention.kept_s is not None and (unread.age_s + now - retention.kept_s) * written_per_s > read:
            return now
        there = unread.records + unread.arriving_per_s * now - read
        if retention.kept_bytes is not None and there * each > retention.kept_bytes:
            return now
    return None


@given(
    kept_s=st.none() | st.floats(10, 100),
    kept_records=st.none() | st.integers(10, 5_000),
    records=st.integers(1, 1_000),
    age_s=st.floats(0.1, 50),
    arriving=st.floats(0, 100),
    taken=st.floats(0, 100),
)
def test_a_loss_comes_when_it_is_said_to(
    kept_s: float | None, kept_records: int | None, records: int, age_s: float, arriving: float, taken: float
) -> None:
    each = 100.0
    retention = Retention(kept_s, None if kept_records is None else int(kept_records * each))
    unread = Unread(records, age_s, records * each, arriving, taken)
    said = loss_of(retention, unread)
    assert said is not None
    if age_s >= (kept_s or math.inf) or records >= (kept_records or math.inf):
        # Past the limit it may go at any moment, whatever is read meanwhile.
        assert said.in_s == 0
        return
    until_s, step_s = 200.0, 0.2
    happened = simulated_s(retention, unread, step_s, until_s)
    if said.in_s is None:
        assert said == NEVER
        assert happened is None
        return
    assume(said.in_s < until_s - 5)
    assert happened is not None
    assert happened == pytest.approx(said.in_s, abs=2 * step_s)


def test_who_stands_still_has_what_is_left_of_the_time() -> None:
    assert loss_of(Retention(100.0), Unread(10, 30.0, None, 5.0, 0.0)) == Loss("retention.ms", 70.0, 100.0)


def test_who_reads_faster_than_was_written_never_loses() -> None:
    assert loss_of(Retention(100.0), Unread(10, 30.0, None, 5.0, 1.0)) == NEVER


def test_what_is_past_the_limit_may_go_at_any_moment() -> None:
    assert loss_of(Retention(100.0), Unread(10, 100.0, None, 5.0, 9e9)) == Loss("retention.ms", 0.0, 100.0)
    assert loss_of(Retention(None, 500), Unread(10, 1.0, 500.0, 0.0, 9.0)) == Loss(
        "retention.bytes", 0.0, None
    )


def test_room_for_bytes_is_filled_by_what_arrives_less_what_is_taken() -> None:
    unread = Unread(10, 1.0, 1_000.0, 5.0, 3.0)
    found = loss_of(Retention(None, 2_000), unread)
    assert found == Loss("retention.bytes", 5.0, 4.0)
    assert found.share == 1.25


@pytest.mark.parametrize(
    ("retention", "unread", "expected"),
    [
        (Retention(10.0), Unread(0, 0.0, 0.0, 5.0, 0.0), None),
        (Retention(), Unread(9, 99.0, 9.0, 5.0, 0.0), NEVER),
        (Retention(10.0), Unread(9, None, 9.0, 5.0, 0.0), Loss("not known")),
        (Retention(None, 10), Unread(9, 1.0, None, 5.0, 0.0), Loss("not known")),
        (Retention(10.0, 10), Unread(9, 1.0, None, 5.0, 0.0), Loss("retention.ms", 9.0, 10.0)),
    ],
)
def test_what_cannot_be_lost_or_cannot_be_known_is_said_so(
    retention: Retention, unread: Unread, expected: Loss | None
) -> None:
    assert loss_of(retention, unread) == expected


def test_the_soonest_of_several_counts() -> None:
    first, second = Loss("retention.ms", 1.0, 2.0), Loss("retention.bytes", 0.5, 9.0)
    assert soonest([first, None, second, NEVER, Loss("not known")]) == second
    assert soonest([NEVER, Loss("not known")]) == Loss("not known")
    assert soonest([NEVER, None]) == NEVER
    assert soonest([None]) is None


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, Retention()),
        ({"cleanup.policy": "delete", "retention.ms": "60000", "retention.bytes": "-1"}, Retention(60.0)),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "5"}, Retention(None, 5)),
        ({"cleanup.policy": "compact", "retention.ms": "60000"}, Retention()),
        ({"cleanup.policy": "compact,delete", "retention.ms": "60000"}, Retention(60.0)),
        ({"retention.ms": "60000", "headrace.archive.enable": "true"}, Retention()),
        ({"retention.ms": "60000", "headrace.archive.enable": "false"}, Retention(60.0)),
    ],
)
def test_retention_is_what_the_topic_deletes_by(configs: dict[str, str], expected: Retention) -> None:
    assert retention_of(configs) == expected


def test_rates_are_of_the_last_minute_and_of_the_last_look() -> None:
    rates = Rates()
    assert rates.note("a", 0.0, 100) is None
    assert rates.note("a", 10.0, 200) == Rate(10.0, 10.0)
    assert rates.note("a", 20.0, 200) == Rate(5.0, 0.0)
    for number in range(3, 100):
        found = rates.note("a", 10.0 * number, 200 + 10 * number)
    assert found == Rate(1.0, 1.0)
    # It went back: another generation, another topic.
    assert rates.note("a", 1_000.0, 0) is None
    rates.keep([])
    assert rates.note("a", 1_010.0, 10) is None


def test_a_rate_remembers_no_more_than_a_few_looks() -> None:
    rates = Rates()
    for number in range(1_000):
        rates.note("a", number / 100, number)
    assert len(rates._looks["a"]) <= 17
    assert math.isclose((rates.note("a", 10.0, 1_000) or Rate(0, 0)).per_s, 100.0)
