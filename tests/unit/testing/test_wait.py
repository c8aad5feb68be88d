"""``eventually`` returns the first value that is as expected, and shows the last value when none was."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.wait import eventually


def sequence(*values: Any) -> Any:
    """Return a function that returns one value after the other, and the last one again and again."""
    left = list(values)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("expected", "value"), [((), [2]), (([2],), [2]), ((lambda rows: len(rows) == 1,), [2])]
)
def test_it_returns_the_first_value_that_is_as_expected(expected: tuple[Any, ...], value: Any) -> None:
    assert eventually(sequence([], [], value, "later"), *expected, pause_s=0) == value


def test_a_failure_shows_the_expected_and_the_last_value() -> None:
    with pytest.raises(AssertionError) as failed:
        eventually(sequence({"visits": 1}), {"visits": 2}, what="the row", timeout_s=0)
    assert str(failed.value).splitlines() == [
        "the row: not as expected within 0 s (1 attempts)",
        "expected:   {'visits': 2}",
        "last value: {'visits': 1}",
    ]


def test_a_long_value_is_cut() -> None:
    with pytest.raises(AssertionError) as failed:
        eventually(lambda: "x" * 100_000, "y", timeout_s=0)
    assert 4_000 < len(str(failed.value)) < 5_000


def test_a_failed_assertion_counts_as_not_yet() -> None:
    values = sequence(0, 1, 2)

    def read() -> int:
        value: int = values()
        assert value > 1, f"only {value}"
        return value

    assert eventually(read, pause_s=0) == 2
    with pytest.raises(AssertionError, match="last value: AssertionError: only 0"):
        eventually(fail_always, timeout_s=0)


def fail_always() -> None:
    raise AssertionError("only 0")


def test_another_error_is_raised_at_once() -> None:
    def read() -> None:
        raise ValueError("no topic")

    with pytest.raises(ValueError, match="no topic"):
        eventually(read)


def test_a_failed_check_ends_the_wait_unless_the_value_is_as_expected_by_then() -> None:
    def check() -> None:
        raise AssertionError("the broker has ended")

    with pytest.raises(AssertionError, match="the broker has ended"):
        eventually(lambda: False, check=check)
    assert eventually(sequence(False, "done"), check=check) == "done"
