from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.clock import GRACE_S, TOLERANCE_MS, TrustedTime

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


class SettableClock:
    """A clock whose wall time and steady time a test sets separately."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.steady_s = 1000.0

    def now_ms(self) -> int:
        return self.wall_ms

    def steady(self) -> float:
        return self.steady_s

    def pass_time(self, seconds: float) -> None:
        self.wall_ms += int(seconds * 1000)
        self.steady_s += seconds


def test_small_corrections_of_the_wall_clock_are_followed() -> None:
    clock = SettableClock()
    trusted = TrustedTime(clock, None)
    clock.pass_time(100)
    clock.wall_ms += 5000
    assert trusted.now_ms() == clock.wall_ms
    clock.wall_ms -= 30_000
    assert trusted.now_ms() == clock.wall_ms


def test_a_jump_of_an_hour_or_ten_years_is_not_followed_at_once() -> None:
    for jump in (HOUR_MS, -HOUR_MS, 10 * YEAR_MS, -10 * YEAR_MS):
        clock = SettableClock()
        trusted = TrustedTime(clock, None)
        before = trusted.now_ms()
        clock.wall_ms += jump
        clock.pass_time(600)
        assert trusted.now_ms() == before + 600_000
        assert trusted.jumps == 1
        assert trusted.pending_jump_ms == jump


def test_a_jump_that_lasts_for_the_grace_time_is_accepted() -> None:
    clock = SettableClock()
    trusted = TrustedTime(clock, None)
    clock.wall_ms += 10 * YEAR_MS
    trusted.now_ms()
    for _ in range(int(GRACE_S // 60)):
        clock.pass_time(60)
        last_ms = trusted.now_ms()
    assert last_ms == clock.wall_ms


def test_a_reverted_jump_leaves_no_trace() -> None:
    clock = SettableClock()
    trusted = TrustedTime(clock, None)
    clock.wall_ms += 10 * YEAR_MS
    trusted.now_ms()
    clock.pass_time(GRACE_S - 1)
    clock.wall_ms -= 10 * YEAR_MS
    assert trusted.now_ms() == clock.wall_ms
    assert trusted.pending_jump_ms == 0


def test_a_frozen_wall_clock_does_not_stop_trusted_time() -> None:
    clock = SettableClock()
    trusted = TrustedTime(clock, None)
    before = trusted.now_ms()
    for _ in range(30):
        clock.steady_s += 60
        last_ms = trusted.now_ms()
    assert before + 28 * 60_000 <= last_ms <= before + 30 * 60_000


def test_a_start_with_a_wrong_clock_is_a_jump_like_any_other() -> None:
    clock = SettableClock()
    saved_ms = clock.wall_ms
    clock.wall_ms += 10 * YEAR_MS
    trusted = TrustedTime(clock, saved_ms)
    assert trusted.now_ms() == saved_ms


@given(st.lists(st.tuples(st.floats(0.1, 300), st.integers(-20 * YEAR_MS, 20 * YEAR_MS)), max_size=30))
def test_within_the_grace_time_the_wall_clock_moves_trusted_time_at_most_by_the_tolerance(
    steps: list[tuple[float, int]],
) -> None:
    clock = SettableClock()
    trusted = TrustedTime(clock, None)
    start, total = trusted.now_ms(), 0.0
    for seconds, jump in steps:
        total += seconds
        if total >= GRACE_S:
            break
        clock.pass_time(seconds)
        clock.wall_ms += jump
        assert abs(trusted.now_ms() - start - total * 1000) <= TOLERANCE_MS + 1000
