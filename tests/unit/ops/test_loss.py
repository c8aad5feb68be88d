"""Predicted losses, compared with a small simulation of a topic, its retention and a reader."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.ops.lag.lag import Loss, Retention, Unread, loss_of, retention_of, soonest
from headrace.ops.lag.rates import Rate, Rates

NEVER = Loss("never")


def simulated_s(retention: Retention, unread: Unread, step_s: float, until_s: float) -> float | None:
    """Return when retention first deletes an unread record. Records are written and read at constant rates."""
    assert unread.age_s is not None
    assert unread.bytes is not None
    record_bytes = unread.bytes / unread.records
    written_per_s = unread.records / unread.age_s
    steps = int(until_s / step_s)
    for number in range(1, steps):
        now = number * step_s
        read = unread.taken_per_s * now
        # The position of the deletion, counted from the first unread record.
        if (
            retention.retention_s is not None
            and (unread.age_s + now - retention.retention_s) * written_per_s > read
        ):
            return now
        unread_records = unread.records + unread.arriving_per_s * now - read
        if (
            retention.retention_bytes is not None
            and unread_records * record_bytes > retention.retention_bytes
        ):
            return now
    return None


@given(
    retention_s=st.none() | st.floats(10, 100),
    kept_records=st.none() | st.integers(10, 5_000),
    records=st.integers(1, 1_000),
    age_s=st.floats(0.1, 50),
    arriving_per_s=st.floats(0, 100),
    read_per_s=st.floats(0, 100),
)
def test_a_loss_happens_at_the_predicted_time(
    retention_s: float | None,
    kept_records: int | None,
    records: int,
    age_s: float,
    arriving_per_s: float,
    read_per_s: float,
) -> None:
    record_bytes = 100.0
    retention = Retention(retention_s, None if kept_records is None else int(kept_records * record_bytes))
    unread = Unread(records, age_s, records * record_bytes, arriving_per_s, read_per_s)
    loss = loss_of(retention, unread)
    assert loss is not None
    if age_s >= (retention_s or math.inf) or records >= (kept_records or math.inf):
        # Retention can delete a record beyond the limit now, even if the reader is fast.
        assert loss.in_s == 0
        return
    until_s, step_s = 200.0, 0.2
    loss_s = simulated_s(retention, unread, step_s, until_s)
    if loss.in_s is None:
        assert loss == NEVER
        assert loss_s is None
        return
    assume(loss.in_s < until_s - 5)
    assert loss_s is not None
    assert loss_s == pytest.approx(loss.in_s, abs=2 * step_s)


def test_a_stopped_reader_loses_records_when_the_retention_time_ends() -> None:
    assert loss_of(Retention(100.0), Unread(10, 30.0, None, 5.0, 0.0)) == Loss("retention.ms", 70.0, 100.0)


def test_a_reader_faster_than_the_writer_never_loses_records() -> None:
    assert loss_of(Retention(100.0), Unread(10, 30.0, None, 5.0, 1.0)) == NEVER


def test_records_beyond_the_limit_can_be_deleted_immediately() -> None:
    assert loss_of(Retention(100.0), Unread(10, 100.0, None, 5.0, 9e9)) == Loss("retention.ms", 0.0, 100.0)
    assert loss_of(Retention(None, 500), Unread(10, 1.0, 500.0, 0.0, 9.0)) == Loss(
        "retention.bytes", 0.0, None
    )


def test_unread_bytes_grow_by_arrivals_minus_reads() -> None:
    unread = Unread(10, 1.0, 1_000.0, 5.0, 3.0)
    result = loss_of(Retention(None, 2_000), unread)
    assert result == Loss("retention.bytes", 5.0, 4.0)
    assert result.share == 1.25


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
def test_a_loss_can_be_never_or_not_known(
    retention: Retention, unread: Unread, expected: Loss | None
) -> None:
    assert loss_of(retention, unread) == expected


def test_the_earliest_of_several_losses_counts() -> None:
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
def test_topic_configs_determine_retention(configs: dict[str, str], expected: Retention) -> None:
    assert retention_of(configs) == expected


def test_a_rate_has_a_one_minute_average_and_a_recent_average() -> None:
    rates = Rates()
    assert rates.add_sample("a", 0.0, 100) is None
    assert rates.add_sample("a", 10.0, 200) == Rate(10.0, 10.0)
    assert rates.add_sample("a", 20.0, 200) == Rate(5.0, 0.0)
    for number in range(3, 100):
        result = rates.add_sample("a", 10.0 * number, 200 + 10 * number)
    assert result == Rate(1.0, 1.0)
    # The count decreased: another generation, or another topic.
    assert rates.add_sample("a", 1_000.0, 0) is None
    rates.retain([])
    assert rates.add_sample("a", 1_010.0, 10) is None


def test_a_rate_keeps_only_a_few_samples() -> None:
    rates = Rates()
    for number in range(1_000):
        rates.add_sample("a", number / 100, number)
    assert len(rates._samples["a"]) <= 17
    assert math.isclose((rates.add_sample("a", 10.0, 1_000) or Rate(0, 0)).per_s, 100.0)
