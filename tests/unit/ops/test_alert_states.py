"""Which alerts fire: once per change, after their minimum duration, and not again after a restart."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.app import App
from headrace.errors import ConfigError
from headrace.model.rule import Rule, parse_rule
from headrace.ops.alerts.alert_log import AlertRecord, decode, encode
from headrace.ops.alerts.rules import DEFAULTS, rules_of
from headrace.ops.alerts.states import AlertStates
from headrace.ops.lag.lag import Lag, Loss
from headrace.ops.lag.reader import Reader
from headrace.settings import AlertSettings

BACKLOG = {"backlog": parse_rule("lag > 10")}


def flow(
    records: int | None, name: str = "price", what: Literal["flow", "view"] = "flow", **more: Any
) -> Lag:
    return Lag(Reader(what, name, "begun"), records, **more)


class Watched:
    """Alert states that accept every change, evaluated once a second."""

    def __init__(self, rules: dict[str, Rule], previous: list[AlertRecord] | None = None) -> None:
        self.rules = rules
        self.states = AlertStates("shop", previous or [])
        self.now = 0

    def evaluate(self, *lags: Lag, accept: bool = True) -> list[tuple[str, str, str]]:
        self.now += 1
        changes = self.states.evaluate(self.rules, lags, float(self.now), self.now * 1_000)
        if accept:
            self.states.accept(changes)
        return [(change.alert, change.name, change.state) for change in changes]

    def firing(self) -> list[str]:
        return [item.key for item in self.states.firing]


def test_an_alert_fires_and_resolves_when_its_rule_changes() -> None:
    watched = Watched(BACKLOG)
    assert watched.evaluate(flow(10)) == []
    assert watched.evaluate(flow(11)) == [("backlog", "price", "firing")]
    assert watched.evaluate(flow(12)) == []
    assert watched.firing() == ["backlog/flow/price"]
    assert watched.evaluate(flow(10)) == [("backlog", "price", "resolved")]
    assert (watched.evaluate(flow(10)), watched.firing()) == ([], [])


def test_each_flow_view_and_group_has_its_own_alert() -> None:
    watched = Watched(BACKLOG)
    assert watched.evaluate(flow(11), flow(11, "price", "view"), flow(1, "other")) == [
        ("backlog", "price", "firing"),
        ("backlog", "price", "firing"),
    ]
    assert watched.evaluate(flow(0), flow(11, "price", "view"), flow(1, "other")) == [
        ("backlog", "price", "resolved")
    ]
    assert watched.firing() == ["backlog/view/price"]


def test_a_rule_with_a_minimum_duration_fires_only_after_it() -> None:
    watched = Watched({"backlog": parse_rule("lag > 10 for 3s")})
    assert [watched.evaluate(flow(11)) for _ in range(3)] == [[], [], []]
    assert watched.evaluate(flow(1)) == []
    assert [watched.evaluate(flow(11)) for _ in range(3)] == [[], [], []]
    assert watched.evaluate(flow(11)) == [("backlog", "price", "firing")]
    assert watched.states.firing[0].since_ms == 5_000
    assert watched.states.firing[0].at_ms == 8_000


def test_a_rule_keeps_its_start_when_the_alert_log_is_reopened() -> None:
    watched = Watched({"backlog": parse_rule("lag > 10 for 3s")})
    for _ in range(3):
        assert watched.evaluate(flow(11)) == []
        watched.states.load([])
    assert watched.evaluate(flow(11)) == [("backlog", "price", "firing")]


def test_an_unknown_value_changes_no_alert() -> None:
    watched = Watched({"backlog": parse_rule("lag > 10 for 2s")})
    assert watched.evaluate(flow(11)) == []
    assert watched.evaluate(flow(None)) == []
    assert watched.evaluate(flow(11)) == [("backlog", "price", "firing")]
    assert watched.evaluate(flow(None)) == []
    assert watched.firing() == ["backlog/flow/price"]


def test_an_alert_that_fired_before_a_restart_does_not_fire_again() -> None:
    watched = Watched(BACKLOG)
    watched.evaluate(flow(11))
    restarted = Watched(BACKLOG, watched.states.firing)
    assert restarted.evaluate(flow(99)) == []
    assert restarted.firing() == ["backlog/flow/price"]
    assert restarted.evaluate(flow(0)) == [("backlog", "price", "resolved")]


def test_a_change_that_was_not_written_is_returned_again() -> None:
    watched = Watched({"backlog": parse_rule("lag > 10 for 1s")})
    watched.evaluate(flow(11))
    assert watched.evaluate(flow(11), accept=False) == [("backlog", "price", "firing")]
    assert watched.firing() == []
    assert watched.evaluate(flow(11)) == [("backlog", "price", "firing")]


def test_an_alert_of_a_removed_subject_is_resolved() -> None:
    watched = Watched(BACKLOG)
    watched.evaluate(flow(11), flow(11, "other"))
    assert watched.evaluate(flow(11)) == [("backlog", "other", "resolved")]
    watched.rules = {}
    assert watched.evaluate(flow(11)) == [("backlog", "price", "resolved")]


@given(st.lists(st.sampled_from([0, 20, None]), max_size=30))
def test_changes_alternate_and_end_with_the_last_known_state(samples: list[int | None]) -> None:
    watched = Watched(BACKLOG)
    changes = [record for records in samples for record in watched.evaluate(flow(records))]
    assert [state for _, _, state in changes] == ["firing", "resolved"] * (len(changes) // 2) + ["firing"] * (
        len(changes) % 2
    )
    known = [item for item in samples if item is not None]
    assert bool(watched.firing()) is bool(known and known[-1])


def test_an_alert_record_describes_its_subject_and_decodes_to_itself() -> None:
    states = AlertStates("shop")
    lag = flow(5, est_bytes=10, age_s=4.0, loss=Loss("retention.ms", 90.0, 100.0))
    (change,) = states.evaluate({"soon": parse_rule("time_to_loss < 2m and lag > 1")}, [lag], 0.0, 7)
    assert change.text == "flow price: 1.5 min to loss and 5 records to read"
    assert change.measures == {
        "lag": 5,
        "bytes": 10,
        "age": 4.0,
        "time_to_loss": 90.0,
        "gone": 0,
        "dead": None,
    }
    key, value = encode(change)
    assert (key, decode(value)) == (b"soon/flow/price", change)
    assert decode(b"{}") is decode(b"\xff") is None


def test_a_loss_that_never_comes_exceeds_every_limit() -> None:
    assert flow(5, loss=Loss("never")).measures["time_to_loss"] == math.inf
    assert flow(0).measures["time_to_loss"] == math.inf
    assert flow(5, loss=Loss("not known")).measures["time_to_loss"] is None
    assert flow(None).measures["time_to_loss"] is None


def test_default_rules_warn_of_imminent_loss_lost_records_and_dead_letters() -> None:
    watched = Watched(rules_of(App("shop"), AlertSettings()))
    day = 86_400.0
    assert watched.evaluate(flow(5, loss=Loss("retention.ms", 3_601.0, 7 * day))) == []
    assert watched.evaluate(flow(5, loss=Loss("retention.ms", 3_599.0, 7 * day))) == [
        ("time-to-loss", "price", "firing")
    ]
    assert watched.evaluate(flow(5, loss=Loss("retention.ms", 301.0, 600.0))) == [
        ("time-to-loss", "price", "resolved")
    ]
    assert watched.evaluate(flow(5, loss=Loss("retention.ms", 299.0, 600.0))) == [
        ("time-to-loss", "price", "firing")
    ]
    assert watched.evaluate(flow(0, gone=3)) == [
        ("time-to-loss", "price", "resolved"),
        ("lost", "price", "firing"),
    ]
    dead = Lag(Reader("flow", "price", "begun", dead=1), 0)
    assert watched.evaluate(dead) == [("lost", "price", "resolved"), ("dead-letters", "price", "firing")]


def test_settings_override_the_app_and_the_app_overrides_the_defaults() -> None:
    app = App("shop")
    app.alert("backlog", "lag > 1")
    app.alert("lost", "gone > 9")
    rules = rules_of(
        app, AlertSettings(rules={"backlog": "lag > 2 on groups", "dead-letters": "off", "x": "age > 1s"})
    )
    assert {name: rule.text for name, rule in rules.items()} == {
        "time-to-loss": DEFAULTS["time-to-loss"],
        "lost": "gone > 9",
        "backlog": "lag > 2 on groups",
        "x": "age > 1s",
    }
    assert [*rules_of(app, AlertSettings(defaults=False))] == ["backlog", "lost"]
    assert rules_of(App("shop"), AlertSettings(defaults=False)) == {}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"backlog": "lag"}, "alerts.rules.backlog: the rule 'lag' is invalid"),
        ({"a/b": "lag > 1"}, "'a/b' has characters other than"),
        ({"backlog": "lag > 1 on flow price"}, "alerts.rules.backlog: app 'shop' has no flow 'price'"),
        ({"backlog": "off"}, "alerts.rules.backlog is off, but no rule has this name"),
    ],
)
def test_an_invalid_rule_in_the_settings_is_named(rules: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        rules_of(App("shop"), AlertSettings(rules=rules))
    assert caught.value.hint
