"""``examples/tills``: its stories are played once, and held against sums that this file makes of the payments."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from examples.tills.story import Rows, Told, morning, play, two_days
from tests.examples.conftest import Heard, expect_page

# All of it is played for the first test, which takes its time on a busy machine.


@pytest.fixture(scope="module")
def told(heard: Heard) -> Told:
    return play(heard.stage)


def summed(*, with_morning: bool, day: str = "") -> Rows:
    """In plain Python, payment by payment."""
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


def test_two_code_bases_drift_and_one_function_does_not(told: Told) -> None:
    right = summed(with_morning=False)
    assert told.stream == right
    assert told.same_function == right
    wrong = {key for key in told.by_hand.keys() | right.keys() if told.by_hand.get(key) != right.get(key)}
    # Only of the till that writes its local time: which is how such a thing stays unseen.
    assert wrong == {("station", "2026-03-01"), ("station", "2026-03-02"), ("station", "2026-03-03")}


def test_yesterday_again_is_what_it_was_and_nobody_is_disturbed(told: Told) -> None:
    assert told.replayed == summed(with_morning=False, day="2026-03-01")
    assert (told.offset_before, told.batch_before) == (told.offset_after, told.batch_after)
    assert told.offset_after == len(two_days())


@pytest.mark.parametrize(
    ("how", "read"),
    [("checkpoint", len(morning())), ("changelog", 0), ("replay", len(two_days()) + len(morning()))],
)
def test_state_comes_back_the_same(told: Told, how: str, read: int) -> None:
    assert told.back[how] == summed(with_morning=True)
    assert told.read_again[how] == read
    assert told.refused == "HR-FLOW-CHECKPOINT-LOST"


def test_the_page_shows_what_is_said(told: Told, heard: Heard) -> None:
    expect_page("tills", heard.lines)
