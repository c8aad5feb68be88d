"""Which alerts fire, and what changes with a look at the lags.

``judge`` says what changes; it counts once ``accept`` is told that the log has it. So what could not be written is
found again with the next look, and what the log says fires does not fire again after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from headrace.model.rule import MEASURES, Condition, Rule
from headrace.ops.alerts.record import AlertRecord, key_of
from headrace.ops.lag.lag import Lag

__all__ = ["AlertStates"]


class AlertStates:
    """``before`` are the last records of the log."""

    def __init__(self, app: str, before: Iterable[AlertRecord] = ()) -> None:
        self._app = app
        self._firing: dict[str, AlertRecord] = {}
        self._held_since: dict[str, tuple[float, int]] = {}
        """Of rules that hold and do not count yet: since when, by both clocks."""
        self.recall(before)

    def recall(self, before: Iterable[AlertRecord]) -> None:
        """What the log says counts. What has held and was not written yet goes on: a log that was away for a moment
        must not put off what is to hold for a while.
        """
        self._firing = {one.key: one for one in before if one.state == "firing"}

    @property
    def firing(self) -> list[AlertRecord]:
        return [self._firing[key] for key in sorted(self._firing)]

    def judge(
        self, rules: Mapping[str, Rule], lags: Sequence[Lag], at_s: float, now_ms: int
    ) -> list[AlertRecord]:
        changes = []
        held: dict[str, tuple[float, int]] = {}
        seen = set()
        for alert, rule in rules.items():
            for lag in lags:
                reader = lag.reader
                if not rule.subject.takes(reader.what, reader.name):
                    continue
                key = key_of(alert, reader.what, reader.name)
                seen.add(key)
                holds = rule.holds(lag.measures)
                before = self._firing.get(key)
                if holds is None:
                    # Not known is no change: what fires goes on, and what has held is still believed to.
                    if key in self._held_since:
                        held[key] = self._held_since[key]
                elif holds and before is None:
                    since_s, since_ms = held[key] = self._held_since.get(key, (at_s, now_ms))
                    if at_s - since_s >= rule.for_s:
                        changes.append(self._record("firing", alert, rule, lag, now_ms, since_ms))
                elif not holds and before is not None:
                    changes.append(self._record("resolved", alert, rule, lag, now_ms, before.since_ms))
        changes += [_over(one, rules, now_ms) for key, one in self._firing.items() if key not in seen]
        self._held_since = held
        return changes

    def accept(self, changes: Iterable[AlertRecord]) -> None:
        for one in changes:
            self._held_since.pop(one.key, None)
            if one.state == "firing":
                self._firing[one.key] = one
            else:
                self._firing.pop(one.key, None)

    def _record(
        self, state: str, alert: str, rule: Rule, lag: Lag, now_ms: int, since_ms: int
    ) -> AlertRecord:
        measures = {name: lag.measures[name] for name in MEASURES}
        said = " and ".join(dict.fromkeys(_said(one, measures) for one in rule.conditions))
        return AlertRecord(
            self._app,
            alert,
            lag.reader.what,
            lag.reader.name,
            "firing" if state == "firing" else "resolved",
            now_ms,
            since_ms,
            rule.text,
            f"{lag.reader.what} {lag.reader.name}: {said}",
            {name: None if value is None or math.isinf(value) else value for name, value in measures.items()},
        )


def _over(one: AlertRecord, rules: Mapping[str, Rule], now_ms: int) -> AlertRecord:
    """What was taken away cannot fire: the rule, or what it is on."""
    why = "is not there any more" if one.alert in rules else "is no longer watched by this rule"
    return AlertRecord(
        one.app,
        one.alert,
        one.what,
        one.name,
        "resolved",
        now_ms,
        one.since_ms,
        one.when,
        f"{one.what} {one.name} {why}",
    )


def _said(condition: Condition, measures: Mapping[str, float | None]) -> str:
    value = measures[condition.measure]
    match condition.measure:
        case "time_to_loss":
            left = "nothing can be lost" if value is None or math.isinf(value) else f"{_time(value)} to loss"
            return "past its limit" if value == 0 else left
        case "age":
            return f"age {_time(value or 0.0)}"
        case "bytes":
            return f"about {int(value or 0):,} bytes to read"
        case "lag":
            return f"{int(value or 0):,} records to read"
        case "gone":
            return f"{int(value or 0):,} records were deleted before they were read"
        case _:
            return f"{int(value or 0):,} dead letter{'s' * (value != 1)}"


def _time(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
