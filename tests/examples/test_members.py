"""``examples/members``: its stories are played once, and held against plans that this file knows by itself."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from examples.members.story import Plans, Told, play
from tests.examples.conftest import Heard, expect_page

FIRST = {"m0": "free", "m1": "free", "m2": "free", "m3": "free", "m4": "free"}
SECOND = {"m0": "free", "m1": "paid", "m2": "paid", "m3": None, "m4": "free"}

# All of it is played for the first test, which takes its time on a busy machine.


@pytest.fixture(scope="module")
def told(heard: Heard) -> Told:
    return play(heard.stage)


def of(first: dict[str, str | None], second: dict[str, str | None], told: Told) -> Plans:
    found = {one.visit_id: first[one.member_id] for one in told.first}
    return found | {one.visit_id: second[one.member_id] for one in told.second}


def test_a_table_that_is_kept_here_has_the_plan_of_each_visit_s_own_time(told: Told) -> None:
    right = of(dict(FIRST), dict(SECOND), told)
    assert len(right) == 400
    assert told.derived == told.asked == right
    # What is asked later, and what was copied before, is wrong where the plan has changed.
    assert told.asked_again == of(dict(SECOND), dict(SECOND), told) != right
    assert told.frozen == of(dict(FIRST), dict(FIRST), told) != right


def test_a_driver_that_dies_behind_its_publishing_leaves_no_duplicate(told: Told) -> None:
    assert set(told.by_hand.values()) == {2}
    assert (told.exit_code, told.noted) == (-signal.SIGKILL, False)
    assert told.published == Counter(one.visit_id for one in told.first + told.second + told.last)


def test_the_page_shows_what_is_said(told: Told, heard: Heard) -> None:
    expect_page("members", heard.lines)
