"""``examples/tills``: its stories run once, and are compared with sums of the payments in plain Python."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from examples.tills.story import Outcome, Rows, morning, play, two_days
from tests.examples.conftest import PlayedStage, expect_page

# The first test runs all stories, so it takes longest.


@pytest.fixture(scope="module")
def outcome(played: PlayedStage) -> Outcome:
    return play(played.stage)


def expected_sums(*, with_morning: bool, day: str = "") -> Rows:
    rows: Rows = {}
    for event in [*two_days(), *(morning() if with_morning else ())]:
        if isinstance(event, tuple):
            row = json.loads(event[1])
            shop, amount, voided = row["shop"], Decimal(row["amount"]), row["voided"]
            at = datetime.fromisoformat(row["at"])
        else:
            shop, amount, voided, at = event.shop, event.amount, event.voided, event.at
        key = shop, str(at.astimezone(UTC).date())
        if not voided and key[1].startswith(day):
            before = rows.get(key, (Decimal(0), 0))
            rows[key] = before[0] + amount, before[1] + 1
    return rows


def test_two_code_bases_return_different_rows_and_one_function_does_not(outcome: Outcome) -> None:
    expected = expected_sums(with_morning=False)
    assert outcome.stream == expected
    assert outcome.same_function == expected
    wrong = {
        key
        for key in outcome.by_hand.keys() | expected.keys()
        if outcome.by_hand.get(key) != expected.get(key)
    }
    # Only the till that writes local time is affected, so the mistake is hard to notice.
    assert wrong == {("station", "2026-03-01"), ("station", "2026-03-02"), ("station", "2026-03-03")}


def test_replaying_a_day_gives_the_same_rows_and_does_not_affect_readers(outcome: Outcome) -> None:
    assert outcome.replayed == expected_sums(with_morning=False, day="2026-03-01")
    assert (outcome.offset_before, outcome.batch_before) == (outcome.offset_after, outcome.batch_after)
    assert outcome.offset_after == len(two_days())


@pytest.mark.parametrize(
    ("recovery", "read"),
    [("checkpoint", len(morning())), ("changelog", 0), ("replay", len(two_days()) + len(morning()))],
)
def test_each_way_to_recover_state_restores_the_same_rows(outcome: Outcome, recovery: str, read: int) -> None:
    assert outcome.back[recovery] == expected_sums(with_morning=True)
    assert outcome.read_again[recovery] == read
    assert outcome.refused == "HR-FLOW-CHECKPOINT-LOST"


def test_the_page_of_an_example_shows_its_output(outcome: Outcome, played: PlayedStage) -> None:
    expect_page("tills", played.lines)
