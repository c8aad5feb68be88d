"""Which alerts fire, from looks at lags: once per change, after their time, and not again after a restart."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.app import App
from headrace.errors import ConfigError
from headrace.model.rule import Rule, parse_rule
from headrace.ops.alerts.record import AlertRecord, decode, encode
from headrace.ops.alerts.rules import DEFAULTS, rules_of
from headrace.ops.alerts.states import AlertStates
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.loss import Loss
from headrace.ops.lag.reader import Reader
from headrace.settings import AlertSettings

BACKLOG = {"backlog": parse_rule("lag > 10")}


def flow(
    records: int | None, name: str = "price", what: Literal["flow", "view"] = "flow", **more: Any
) -> Lag:
    return Lag(Reader(what, name, "begun"), records, **more)


class Watched:
    """States that are accepted as they come, a look a second."""

    def __init__(self, rules: dict[str, Rule], before: list[AlertRecord] | None = None) -> None:
        self.rules = rules
        self.states = AlertStates("shop", before or [])
        self.now = 0

    def look(self, *lags: Lag, accept: bool = True) -> list[tuple[str, str, str]]:
        self.now += 1
        changes = self.states.judge(self.rules, lags, float(self.now), self.now * 1_000)
        if accept:
            self.states.accept(changes)
        return [(one.alert, one.name, one.state) for one in changes]

    def firing(self) -> list[str]:
        return [one.key for one in self.states.firing]


def test_an_alert_changes_when_its_rule_begins_to_hold_and_when_it_ends() -> None:
    watched = Watched(BACKLOG)
    assert watched.look(flow(10)) == []
    assert watched.look(flow(11)) == [("backlog", "price", "firing")]
    assert watched.look(flow(12)) == []
    assert watched.firing() == ["backlog/flow/price"]
    assert watched.look(flow(10)) == [("backlog", "price", "resolved")]
    assert (watched.look(flow(10)), watched.firing()) == ([], [])


def test_each_flow_view_and_group_is_on_its_own() -> None:
    watched = Watched(BACKLOG)
    assert watched.look(flow(11), flow(11, "price", "view"), flow(1, "other")) == [
        ("backlog", "price", "firing"),
        ("backlog", "price", "firing"),
    ]
    assert watched.look(flow(0), flow(11, "price", "view"), flow(1, "other")) == [
        ("backlog", "price", "resolved")
    ]
    assert watched.firing() == ["backlog/view/price"]


def test_a_rule_that_must_hold_for_a_while_waits_for_it() -> None:
    watched = Watched({"backlog": parse_rule("lag > 10 for 3s")})
    assert [watched.look(flow(11)) for _ in range(3)] == [[], [], []]
    assert watched.look(flow(1)) == []
    assert [watched.look(flow(11)) for _ in range(3)] == [[], [], []]
    assert watched.look(flow(11)) == [("backlog", "price", "firing")]
    assert watched.states.firing[0].since_ms == 5_000
    assert watched.states.firing[0].at_ms == 8_000


def test_what_has_held_goes_on_when_the_log_is_opened_anew() -> None:
    watched = Watched({"backlog": parse_rule("lag > 10 for 3s")})
    for _ in range(3):
        assert watched.look(flow(11)) == []
        watched.states.recall([])
    assert watched.look(flow(11)) == [("backlog", "price", "firing")]


def test_what_is_not_known_changes_nothing() -> None:
    watched = Watched({"backlog": parse_rule("lag > 10 for 2s")})
    assert watched.look(flow(11)) == []
    assert watched.look(flow(None)) == []
    assert watched.look(flow(11)) == [("backlog", "price", "firing")]
    assert watched.look(flow(None)) == []
    assert watched.firing() == ["backlog/flow/price"]


def test_what_fired_before_a_restart_does_not_fire_again() -> None:
    watched = Watched(BACKLOG)
    watched.look(flow(11))
    again = Watched(BACKLOG, watched.states.firing)
    assert again.look(flow(99)) == []
    assert again.firing() == ["backlog/flow/price"]
    assert again.look(flow(0)) == [("backlog", "price", "resolved")]


def test_a_change_that_was_not_written_is_found_again() -> None:
    watched = Watched({"backlog": parse_rule("lag > 10 for 1s")})
    watched.look(flow(11))
    assert watched.look(flow(11), accept=False) == [("backlog", "price", "firing")]
    assert watched.firing() == []
    assert watched.look(flow(11)) == [("backlog", "price", "firing")]


def test_what_is_taken_away_fires_no_more() -> None:
    watched = Watched(BACKLOG)
    watched.look(flow(11), flow(11, "other"))
    assert watched.look(flow(11)) == [("backlog", "other", "resolved")]
    watched.rules = {}
    assert watched.look(flow(11)) == [("backlog", "price", "resolved")]


@given(st.lists(st.sampled_from([0, 20, None]), max_size=30))
def test_changes_alternate_and_end_as_the_last_that_is_known(looks: list[int | None]) -> None:
    watched = Watched(BACKLOG)
    changes = [one for records in looks for one in watched.look(flow(records))]
    assert [state for _, _, state in changes] == ["firing", "resolved"] * (len(changes) // 2) + ["firing"] * (
        len(changes) % 2
    )
    known = [one for one in looks if one is not None]
    assert bool(watched.firing()) is bool(known and known[-1])


def test_a_record_says_what_it_is_about_and_reads_back() -> None:
    states = AlertStates("shop")
    lag = flow(5, est_bytes=10, age_s=4.0, loss=Loss("retention.ms", 90.0, 100.0))
    (one,) = states.judge({"soon": parse_rule("time_to_loss < 2m and lag > 1")}, [lag], 0.0, 7)
    assert one.text == "flow price: 1.5 min to loss and 5 records to read"
    assert one.measures == {"lag": 5, "bytes": 10, "age": 4.0, "time_to_loss": 90.0, "gone": 0, "dead": None}
    key, value = encode(one)
    assert (key, decode(value)) == (b"soon/flow/price", one)
    assert decode(b"{}") is decode(b"\xff") is None


def test_a_loss_that_never_comes_is_further_away_than_any_limit() -> None:
    assert flow(5, loss=Loss("never")).measures["time_to_loss"] == math.inf
    assert flow(0).measures["time_to_loss"] == math.inf
    assert flow(5, loss=Loss("not known")).measures["time_to_loss"] is None
    assert flow(None).measures["time_to_loss"] is None


def test_the_defaults_warn_before_the_loss_of_it_and_of_dead_letters() -> None:
    watched = Watched(rules_of(App("shop"), AlertSettings()))
    day = 86_400.0
    assert watched.look(flow(5, loss=Loss("retention.ms", 3_601.0, 7 * day))) == []
    assert watched.look(flow(5, loss=Loss("retention.ms", 3_599.0, 7 * day))) == [
        ("time-to-loss", "price", "firing")
    ]
    assert watched.look(flow(5, loss=Loss("retention.ms", 301.0, 600.0))) == [
        ("time-to-loss", "price", "resolved")
    ]
    assert watched.look(flow(5, loss=Loss("retention.ms", 299.0, 600.0))) == [
        ("time-to-loss", "price", "firing")
    ]
    assert watched.look(flow(0, gone=3)) == [
        ("time-to-loss", "price", "resolved"),
        ("lost", "price", "firing"),
    ]
    dead = Lag(Reader("flow", "price", "begun", dead=1), 0)
    assert watched.look(dead) == [("lost", "price", "resolved"), ("dead-letters", "price", "firing")]


def test_settings_count_over_the_app_and_the_app_over_the_defaults() -> None:
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
    ("rules", "wrong"),
    [
        ({"backlog": "lag"}, "alerts.rules.backlog: the rule 'lag' makes no sense"),
        ({"a/b": "lag > 1"}, "'a/b' has characters other than"),
        ({"backlog": "lag > 1 on flow price"}, "alerts.rules.backlog: app 'shop' has no flow 'price'"),
        ({"backlog": "off"}, "alerts.rules.backlog is off, and there is no such rule"),
    ],
)
def test_a_rule_of_the_settings_that_makes_no_sense_is_named(rules: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as caught:
        rules_of(App("shop"), AlertSettings(rules=rules))
    assert caught.value.hint
