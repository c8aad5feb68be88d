"""Times in responses are those of the log, to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from headrace.clock import time_json
from headrace.model.codec.scalar_text import time_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999


@given(st.integers(-62_135_596_800_000, _LAST_MS))
def test_a_time_is_written_as_in_the_log(ms: int) -> None:
    assert time_json(ms) == time_text(_EPOCH + timedelta(milliseconds=ms))


def test_a_time_after_the_calendar_is_written_as_the_last_time() -> None:
    assert time_json(_LAST_MS + 1) == time_json(2**62) == "9999-12-31T23:59:59.999999Z"
