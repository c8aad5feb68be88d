"""Offsets and ranges as users write them on the command line."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.errors import UsageError
from headrace.cli.offset_range import (
    Kind,
    OffsetSpec,
    Range,
    parse_duration_ms,
    parse_position,
    parse_range,
    parse_time_range,
    parse_timestamp,
)

NOW = 1_794_735_000_000
HOUR = 3_600_000
DAY_START = 1_794_700_800_000  # 2026-11-15T00:00:00Z


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1794735000123", 1_794_735_000_123),
        ("1794735000", 1_794_735_000_000),
        ("2026-11-15", DAY_START),
        ("2026-11-15T09:30:00Z", DAY_START + 9 * HOUR + HOUR // 2),
        ("2026-11-15T09:30", DAY_START + 9 * HOUR + HOUR // 2),
        ("2026-11-15T09:30:00.250+01:00", DAY_START + 8 * HOUR + HOUR // 2 + 250),
        ("-1h", NOW - HOUR),
        ("-1h30m", NOW - HOUR - HOUR // 2),
        ("2d", NOW + 48 * HOUR),
        ("-1.5s", NOW - 1_500),
        ("-250ms", NOW - 250),
    ],
)
def test_a_time_is_a_number_a_date_or_a_duration(text: str, ms: int) -> None:
    assert parse_timestamp(text, NOW).ms == ms


@pytest.mark.parametrize("text", ["", "yesterday", "12", "1h30", "2026-13-01", "--1h", "1794735000x", "-"])
def test_an_invalid_time_is_rejected_with_the_valid_forms(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_timestamp(text, NOW)
    assert "2026-11-15T09:30:00Z" in refused.value.hint


@given(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(9998, 1, 1)))
def test_any_time_of_day_parses_as_in_python(moment: datetime) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1_000 * 1_000, tzinfo=UTC)
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_timestamp(moment.isoformat(), NOW).ms == expected
    assert parse_timestamp(moment.isoformat().replace("+00:00", "Z"), NOW).ms == expected


@given(st.integers(0, 10_000), st.integers(0, 23), st.integers(0, 59), st.integers(0, 999))
def test_a_duration_is_the_sum_of_its_parts(days: int, hours: int, minutes: int, ms: int) -> None:
    expected = timedelta(days=days, hours=hours, minutes=minutes, milliseconds=ms) // timedelta(
        milliseconds=1
    )
    assert parse_duration_ms(f"{days}d{hours}h{minutes}m{ms}ms") == expected


@given(
    st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)),
    st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)),
)
def test_a_time_range_splits_at_the_colon_between_its_times(first: datetime, second: datetime) -> None:
    first, second = first.replace(microsecond=0), second.replace(microsecond=0)
    begin, until = parse_time_range(f"{first.isoformat()}Z:{second.isoformat()}Z", NOW)
    assert begin == parse_timestamp(f"{first.isoformat()}Z", NOW)
    assert until == parse_timestamp(f"{second.isoformat()}Z", NOW)


def at(ms: int) -> OffsetSpec:
    return OffsetSpec(Kind.TIME, ms)


START, END = OffsetSpec(Kind.START), OffsetSpec(Kind.END)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Range(START)),
        ("oldest", Range(START)),
        ("end", Range(END)),
        ("47", Range(OffsetSpec(Kind.EXACT, 47))),
        ("47:", Range(OffsetSpec(Kind.EXACT, 47))),
        (":60", Range(START, OffsetSpec(Kind.EXACT, 60))),
        ("47:60", Range(OffsetSpec(Kind.EXACT, 47), OffsetSpec(Kind.EXACT, 60))),
        (":end", Range(START, END)),
        ("47:end", Range(OffsetSpec(Kind.EXACT, 47), END)),
        ("+10", Range(OffsetSpec(Kind.AFTER_START, 10))),
        ("-10", Range(OffsetSpec(Kind.BEFORE_END, 10))),
        ("-10:end", Range(OffsetSpec(Kind.BEFORE_END, 10), END)),
        ("@-1h", Range(at(NOW - HOUR))),
        ("@-2h:-1h", Range(at(NOW - 2 * HOUR), at(NOW - HOUR))),
        ("@-1m:end", Range(at(NOW - 60_000), END)),
        ("@:-1h", Range(START, at(NOW - HOUR))),
        # After an absolute start (a day), a duration is relative to that start, otherwise to now.
        ("@2026-11-15:1h", Range(at(DAY_START), at(DAY_START + HOUR))),
        ("@2026-11-15T09:30:00Z", Range(at(DAY_START + 9 * HOUR + HOUR // 2))),
    ],
)
def test_a_range_parses_as_in_rpk(text: str, expected: Range) -> None:
    assert parse_range(text, NOW) == expected


@pytest.mark.parametrize("text", ["", ":", "x", "1:0", "5:5", "+", "-", "1.5", "@", "@end", "9" * 30, "٣"])
def test_an_invalid_range_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_range(text, NOW)


@given(st.text(max_size=30) | st.text("0123456789:@+-endstarhm.TZ", max_size=20))
def test_any_text_is_a_valid_offset_or_an_error(text: str) -> None:
    for parse in (parse_position, parse_range):
        with suppress(UsageError):
            parse(text, NOW)
