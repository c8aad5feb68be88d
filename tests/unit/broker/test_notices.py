from __future__ import annotations

import json
import logging

import pytest

from headrace.broker.main import JsonLines
from headrace.broker.notices import Notices
from headrace.testing.faulty_clock import DrivenClock


def test_a_flood_of_one_kind_is_cut_and_the_next_line_says_how_much_was_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = DrivenClock()
    notices = Notices(clock)
    with caplog.at_level(logging.WARNING, "headrace.broker"):
        for number in range(1000):
            notices.say("oversized-frame", f"frame {number}", {"announced": number})
        notices.say("slow-reader", "another kind is not cut by it")
        clock.advance(10)
        notices.say("oversized-frame", "one more")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:2] == ["frame 0", "frame 1"]
    assert len(lines) == 12
    assert lines[10] == "another kind is not cut by it"
    assert lines[11] == "one more (990 more of this kind were not logged)"
    assert notices.counts == {"oversized-frame": 1001, "slow-reader": 1}


def test_a_line_of_json_carries_the_event_and_its_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.broker"):
        Notices(DrivenClock()).say("oversized-frame", "too large\nby far", {"announced": 7, "client": "::1"})
    line = JsonLines().format(caplog.records[0])
    assert "\n" not in line
    said = json.loads(line)
    assert said["event"] == "oversized-frame"
    assert (said["announced"], said["client"], said["level"]) == (7, "::1", "warning")
