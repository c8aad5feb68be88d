"""The time for which the machine stood still does not count as time that a client waited for the broker."""

from __future__ import annotations

import pytest

from faults.log.ping_process import waited_ms


@pytest.mark.parametrize(
    ("stalls", "expected_ms"),
    [
        ([], 200.0),
        ([(9.5, 100.0), (10.7, 100.0)], 200.0),
        ([(10.15, 50.0)], 150.0),
        ([(9.9, 50.0), (10.1, 150.0)], 100.0),
        ([(10.3, 400.0)], 0.0),
    ],
    ids=["none", "outside", "inside", "two, one of them partly inside", "around"],
)
def test_a_stall_of_the_machine_is_subtracted(stalls: list[tuple[float, float]], expected_ms: float) -> None:
    # The response arrived at 10.2 s, 200 ms after its request.
    assert waited_ms((10.2, 200.0), stalls) == pytest.approx(expected_ms)
