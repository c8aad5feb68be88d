"""The states of alerts: which alerts fire, and which of them start or stop firing when new lags are measured.

``evaluate`` returns changes. The caller writes them to the log and then calls ``accept``. If a change could not be
written, ``evaluate`` returns it again with the next lags. After a restart, an alert that fires in the log does not fire
again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from headrace.model.rule import MEASURES, Condition, Rule
from headrace.ops.alerts.alert_log import AlertRecord, key_of
from headrace.ops.lag.lag import Lag

__all__ = ["AlertStates"]


class AlertStates:
    """``previous`` has the last record of each alert in the log."""

    def __init__(self, app: str, previous: Iterable[AlertRecord] = ()) -> None:
        self._app = app
        self._firing: dict[str, AlertRecord] = {}
        self._held_since: dict[str, tuple[float, int]] = {}
        """For rules that are true but do not fire yet: when they became true, in steady seconds and in wall-clock
        milliseconds."""
        self.load(previous)

    def load(self, previous: Iterable[AlertRecord]) -> None:
        """Load the firing alerts from the log. A rule that is true but does not fire yet keeps the time when it became
        true. Otherwise a short outage of the log would delay an alert with a minimum duration.
        """
        self._firing = {record.key: record for record in previous if record.state == "firing"}

    @property
    def firing(self) -> list[AlertRecord]:
        return [self._firing[key] for key in sorted(self._firing)]

    def evaluate(
        self, rules: Mapping[str, Rule], lags: Sequence[Lag], at_s: float, now_ms: int
    ) -> list[AlertRecord]:
        changes = []
        held: dict[str, tuple[float, int]] = {}
        evaluated_keys = set()
        for alert, rule in rules.items():
            for lag in lags:
                reader = lag.reader
                if not rule.subject.matches(reader.what, reader.name):
                    continue
                key = key_of(alert, reader.what, reader.name)
                evaluated_keys.add(key)
                holds = rule.holds(lag.measures)
                previous = self._firing.get(key)
                if holds is None:
                    # An unknown value changes no state: an alert continues to fire, and a true rule stays true.
                    if key in self._held_since:
                        held[key] = self._held_since[key]
                elif holds and previous is None:
                    since_s, since_ms = held[key] = self._held_since.get(key, (at_s, now_ms))
                    if at_s - since_s >= rule.for_s:
                        changes.append(self._record("firing", alert, rule, lag, now_ms, since_ms))
                elif not holds and previous is not None:
                    changes.append(self._record("resolved", alert, rule, lag, now_ms, previous.since_ms))
        changes += [
            _resolved(record, rules, now_ms)
            for key, record in self._firing.items()
            if key not in evaluated_keys
        ]
        self._held_since = held
        return changes

    def accept(self, changes: Iterable[AlertRecord]) -> None:
        for record in changes:
            self._held_since.pop(record.key, None)
            if record.state == "firing":
                self._firing[record.key] = record
            else:
                self._firing.pop(record.key, None)

    def _record(
        self, state: str, alert: str, rule: Rule, lag: Lag, now_ms: int, since_ms: int
    ) -> AlertRecord:
        measures = {name: lag.measures[name] for name in MEASURES}
        true_conditions = [condition for condition in rule.conditions if condition.holds(lag.measures)]
        text = " and ".join(
            dict.fromkeys(
                _condition_text(condition, measures) for condition in true_conditions or rule.conditions
            )
        )
        return AlertRecord(
            self._app,
            alert,
            lag.reader.what,
            lag.reader.name,
            "firing" if state == "firing" else "resolved",
            now_ms,
            since_ms,
            rule.text,
            f"{lag.reader.what} {lag.reader.name}: {text}",
            {name: None if value is None or math.isinf(value) else value for name, value in measures.items()},
        )


def _resolved(record: AlertRecord, rules: Mapping[str, Rule], now_ms: int) -> AlertRecord:
    """Return the last record of an alert whose rule or subject was removed."""
    why = "no longer exists" if record.alert in rules else "is no longer watched by this rule"
    return AlertRecord(
        record.app,
        record.alert,
        record.what,
        record.name,
        "resolved",
        now_ms,
        record.since_ms,
        record.when,
        f"{record.what} {record.name} {why}",
    )


def _condition_text(condition: Condition, measures: Mapping[str, float | None]) -> str:
    value = measures[condition.measure]
    match condition.measure:
        case "time_to_loss":
            text = "no loss expected" if value is None or math.isinf(value) else f"{_time(value)} to loss"
            return "retention can delete unread records now" if value == 0 else text
        case "age":
            return f"age {_time(value or 0.0)}"
        case "bytes":
            return f"about {int(value or 0):,} bytes to read"
        case "lag":
            return f"{int(value or 0):,} records to read"
        case "gone":
            return f"{int(value or 0):,} records were deleted before they were read"
        case _:
            return f"{int(value or 0):,} open dead letter{'s' * (value != 1)}"


def _time(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
