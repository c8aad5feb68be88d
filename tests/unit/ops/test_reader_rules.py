"""The dry run of a replay states what flows and views would do with a record, by their own rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import App
from headrace.model.declarations import Flow
from headrace.ops.dead.reader_rules import FlowTimes, ReaderRules

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATE = timedelta(minutes=10)


@dataclass(frozen=True)
class Ride:
    ride: str
    seconds: int
    at: datetime


def in_seconds(value: dict[str, Any]) -> dict[str, Any]:
    if "minutes" in value:
        value["seconds"] = value.pop("minutes") * 60
    return value


app = App("rules")
rides = app.topic("rides", Ride, key="ride", time="at", late=LATE, upcast=in_seconds)
app.flow(reads=[rides], writes=app.topic("counts", key="ride"), name="count")(lambda rides: rides)


def micros(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def outcome(
    value: dict[str, Any],
    times_of: Callable[[Flow], FlowTimes | None] = lambda flow: None,
    partition: int = 0,
) -> tuple[str, str]:
    rules = ReaderRules(app, 3_600_000_000, times_of)
    encoded = json.dumps(value, default=lambda at: at.isoformat()).encode()
    (found,) = rules.outcomes(rides, b"a", encoded, round(NOON.timestamp() * 1_000), (), partition)
    return found.outcome, found.note


def test_an_older_value_is_accepted_if_the_upcasters_convert_it() -> None:
    assert outcome({"ride": "a", "minutes": 2, "at": NOON})[0] == "accepts"
    assert outcome({"ride": "a", "hours": 2, "at": NOON})[0] == "rejects"


@pytest.mark.parametrize(
    ("at", "partition", "expected"),
    [
        (NOON - LATE, 0, "accepts"),
        (NOON - LATE - timedelta(microseconds=1), 0, "late"),
        # No event of the other partition is newer.
        (NOON - LATE - timedelta(minutes=1), 1, "accepts"),
        # Its partition is unknown, or has no events; but the flow has dropped the state of this time.
        (NOON - timedelta(hours=1), 1, "rejects"),
        (NOON - timedelta(hours=1), -1, "rejects"),
    ],
)
def test_an_event_that_the_flow_would_treat_as_late_is_named(
    at: datetime, partition: int, expected: str
) -> None:
    times = FlowTimes("side", {"rides": {"0": micros(NOON)}}, micros(NOON - timedelta(minutes=30)))
    value = {"ride": "a", "seconds": 1, "at": at}
    found, note = outcome(value, lambda flow: times, partition)
    assert found == expected
    if expected == "late":
        assert (
            note
            == "it is more than 0:10:00 behind the newest event, so the flow writes it to the topic of late events"
        )
    # A flow that keeps late events has no such times.
    assert outcome(value, partition=partition)[0] == "accepts"
