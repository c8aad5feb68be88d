"""Which generation of a flow upstream a flow may read, and when it must stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.app import App
from headrace.flow.errors import InputReplaced, SwitchUnderWay, UpstreamSwitched
from headrace.flow.upstream import why_unreadable
from headrace.model.declarations import Flow, Topic
from headrace.model.generations import Entry, FlowGenerations


@dataclass(frozen=True)
class Ride:
    ride: str


def reader(of: str | None) -> tuple[Flow, Topic]:
    app = App("billing")
    rides = app.topic("rides", Ride, key="ride", of=of)

    @app.flow(reads=[rides], writes=app.topic("takings", key="ride"))
    def take(rides: Any) -> Any:
        return rides

    return take, rides


def entry(number: int, topic: str) -> Entry:
    return Entry(number, f"progress.{number}", topic, "fingerprint", "a test", 0)


FIRST = FlowGenerations("derive", "bikes", "rides", 1, 1, (entry(1, "rides"),))
BUILDING = FIRST.with_entry(entry(2, "rides.g2"))
SWITCHING = BUILDING.with_switch(2, "host:1", 0)
SWITCHED = SWITCHING.switched(7, 1)
SWITCHED_TWICE = SWITCHED.with_entry(entry(3, "rides.g3")).with_switch(3, "host:1", 0).switched(7, 2)


def judge(of: str | None, log: str, upstream: FlowGenerations, *, is_kept: bool = False) -> Any:
    flow, topic = reader(of)
    return type(why_unreadable(flow, topic, log, upstream, is_kept=is_kept))


def test_a_flow_reads_the_rows_of_the_generation_that_serves_in_another_app() -> None:
    for upstream in (FIRST, BUILDING):
        assert judge("bikes", "rides", upstream) is type(None)
    assert judge("bikes", "rides.g2", SWITCHED) is type(None)


def test_a_flow_waits_while_another_app_may_write_the_difference_to_its_input() -> None:
    assert judge("bikes", "rides", SWITCHING) is SwitchUnderWay
    # The difference goes only to the stable topic.
    again = SWITCHED.with_entry(entry(3, "rides.g3")).with_switch(3, "host:1", 0)
    assert judge("bikes", "rides.g2", again) is type(None)


def test_a_flow_stops_after_another_app_has_switched() -> None:
    assert judge("bikes", "rides", SWITCHED) is UpstreamSwitched
    assert judge("bikes", "rides.g2", SWITCHED_TWICE) is UpstreamSwitched
    flow, topic = reader("bikes")
    error = why_unreadable(flow, topic, "rides", SWITCHED, is_kept=False)
    assert isinstance(error, UpstreamSwitched)
    assert error.code == "HR-FLOW-UPSTREAM-SWITCHED"
    assert "generation 2 of topic rides of app bikes serves now, and writes rides.g2" in error.message
    assert "headrace flow rebuild MODULE:APP take" in (error.hint or "")


def test_a_kept_generation_continues_with_a_kept_generation_of_another_app() -> None:
    assert judge("bikes", "rides.g2", SWITCHED_TWICE, is_kept=True) is type(None)
    # The stable topic has the differences.
    assert judge("bikes", "rides", SWITCHED, is_kept=True) is UpstreamSwitched
    dropped = SWITCHED_TWICE.without(2)
    assert judge("bikes", "rides.g2", dropped, is_kept=True) is UpstreamSwitched


def test_a_flow_of_the_same_app_stops_when_its_input_gets_rows_of_another_generation() -> None:
    assert judge(None, "rides", FIRST) is type(None)
    assert judge(None, "rides", SWITCHING) is SwitchUnderWay
    assert judge(None, "rides", SWITCHED) is InputReplaced
    assert judge(None, "rides.g2", SWITCHED) is type(None)
    # Within an app, a flow downstream switches before the flow upstream does.
    assert judge(None, "rides.g3", msgspec.structs.replace(SWITCHED_TWICE, serving=2)) is type(None)
