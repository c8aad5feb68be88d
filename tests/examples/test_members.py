"""``examples/members``: its stories run once, and are compared with the plans below."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from examples.members.story import Outcome, Plans, play
from tests.examples.conftest import PlayedStage, expect_page

FIRST = {"m0": "free", "m1": "free", "m2": "free", "m3": "free", "m4": "free"}
SECOND = {"m0": "free", "m1": "paid", "m2": "paid", "m3": None, "m4": "free"}

# The first test runs all stories, so it takes longest.


@pytest.fixture(scope="module")
def outcome(played: PlayedStage) -> Outcome:
    return play(played.stage)


def plans_of(first: dict[str, str | None], second: dict[str, str | None], outcome: Outcome) -> Plans:
    plans = {visit.visit_id: first[visit.member_id] for visit in outcome.first}
    return plans | {visit.visit_id: second[visit.member_id] for visit in outcome.second}


def test_a_local_table_has_the_plan_at_the_time_of_each_visit(outcome: Outcome) -> None:
    expected = plans_of(dict(FIRST), dict(SECOND), outcome)
    assert len(expected) == 400
    assert outcome.derived == outcome.fetched == expected
    # For a member whose plan has changed, both a later query and an earlier copy are wrong.
    assert outcome.fetched_later == plans_of(dict(SECOND), dict(SECOND), outcome) != expected
    assert outcome.copied == plans_of(dict(FIRST), dict(FIRST), outcome) != expected


def test_a_driver_that_is_killed_after_publishing_leaves_no_duplicate(outcome: Outcome) -> None:
    assert set(outcome.by_hand.values()) == {2}
    assert (outcome.exit_code, outcome.recorded) == (-signal.SIGKILL, False)
    assert outcome.published == Counter(
        visit.visit_id for visit in outcome.first + outcome.second + outcome.last
    )


def test_the_page_of_an_example_shows_its_output(outcome: Outcome, played: PlayedStage) -> None:
    expect_page("members", played.lines)
