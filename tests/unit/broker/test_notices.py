from __future__ import annotations

import json
import logging

import pytest

from headrace.broker.main import JsonLines
from headrace.broker.net.client_limits import Notices
from headrace.testing.clock import DrivenClock


def test_a_flood_of_one_event_is_limited_and_the_next_line_counts_the_suppressed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = DrivenClock()
    notices = Notices(clock)
    with caplog.at_level(logging.WARNING, "headrace.broker"):
        for number in range(1000):
            notices.connection_closed("oversized-frame", f"frame {number}", {"announced": number})
        notices.connection_closed("slow-reader", "another kind is not cut by it")
        clock.advance(10)
        notices.connection_closed("oversized-frame", "one more")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:2] == ["frame 0", "frame 1"]
    assert len(lines) == 12
    assert lines[10] == "another kind is not cut by it"
    assert lines[11] == "one more (990 similar events were not logged)"
    assert notices.counts == {"oversized-frame": 1001, "slow-reader": 1}


def test_a_json_log_line_has_the_event_and_its_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.broker"):
        Notices(DrivenClock()).connection_closed(
            "oversized-frame", "too large\nby far", {"announced": 7, "client": "::1"}
        )
    line = JsonLines().format(caplog.records[0])
    assert "\n" not in line
    notice = json.loads(line)
    assert notice["event"] == "oversized-frame"
    assert (notice["announced"], notice["client"], notice["level"]) == (7, "::1", "warning")
