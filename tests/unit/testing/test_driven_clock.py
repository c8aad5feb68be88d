from __future__ import annotations

import pytest

from headrace.clock import Clock
from headrace.testing.clock import DrivenClock


def test_the_clock_stands_still_until_advanced():
    clock: Clock = DrivenClock(1000)
    assert (clock.now_ms(), clock.steady()) == (clock.now_ms(), clock.steady()) == (1000, 0.0)


def test_the_wall_clock_is_also_a_time_in_utc():
    assert DrivenClock(1_500).now().isoformat() == "1970-01-01T00:00:01.500000+00:00"


def test_time_passes_on_both_clocks():
    clock = DrivenClock(1000)
    clock.advance(2.5)
    assert (clock.now_ms(), clock.steady()) == (3500, 2.5)
    with pytest.raises(ValueError, match="cannot advance by"):
        clock.advance(-1)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 10 * 365 * 86_400_000, -10 * 365 * 86_400_000])
def test_only_the_wall_clock_jumps(jump_ms):
    clock = DrivenClock(10**12)
    clock.advance(1)
    clock.jump_wall(jump_ms)
    assert (clock.now_ms(), clock.steady()) == (10**12 + 1000 + jump_ms, 1.0)


def test_a_frozen_wall_clock_stops_while_the_steady_clock_continues():
    clock = DrivenClock(1000)
    clock.freeze()
    clock.advance(5)
    clock.freeze()
    assert (clock.now_ms(), clock.steady()) == (1000, 5.0)
    clock.jump_wall(7)
    assert clock.now_ms() == 1007
    clock.thaw()
    clock.thaw()
    assert clock.now_ms() == 1007
    clock.advance(1)
    assert (clock.now_ms(), clock.steady()) == (2007, 6.0)


def test_a_clock_that_follows_another_can_still_be_advanced():
    ticks = [100.0]
    clock = DrivenClock(1000, ticking=lambda: ticks[0])
    assert (clock.now_ms(), clock.steady()) == (1000, 0.0)
    ticks[0] += 2
    assert (clock.now_ms(), clock.steady()) == (3000, 2.0)
    clock.advance(1)
    clock.jump_wall(-500)
    assert (clock.now_ms(), clock.steady()) == (3500, 3.0)
    clock.freeze()
    ticks[0] += 10
    assert (clock.now_ms(), clock.steady()) == (3500, 13.0)
