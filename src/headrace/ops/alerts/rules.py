"""The rules in force: those that need no declaration, those of the app over them, and those of the settings over both.

By name, so that a rule of the same name replaces what is below it, and ``off`` in the settings takes it away.
"""

from __future__ import annotations

from headrace.app import App
from headrace.errors import ConfigError
from headrace.model.alert_mistakes import subject_fault
from headrace.model.names import name_fault
from headrace.model.rule import Rule, RuleUnreadable, parse_rule
from headrace.settings import AlertSettings

__all__ = ["DEFAULTS", "rules_of"]

DEFAULTS = {
    # An hour to act in; where records are kept for less than two, half of that time.
    "time-to-loss": "time_to_loss < 1h and time_to_loss < 50%",
    "lost": "gone > 0",
    "dead-letters": "dead > 0",
}
OFF = "off"


def rules_of(app: App, alerts: AlertSettings) -> dict[str, Rule]:
    """The app must have been checked."""
    texts = dict(DEFAULTS) if alerts.defaults else {}
    texts |= {alert.name: alert.text for alert in app.alerts}
    found = {name: parse_rule(text) for name, text in texts.items()}
    for name, text in alerts.rules.items():
        if text.strip().lower() == OFF:
            _expect_known(name, found)
            del found[name]
        else:
            found[name] = _from_settings(app, name, text)
    return found


def _from_settings(app: App, name: str, text: str) -> Rule:
    fault = name_fault(name)
    if fault:
        raise ConfigError(f"alerts.rules: {fault}", hint="give the rule another name")
    try:
        rule = parse_rule(text)
    except RuleUnreadable as error:
        raise ConfigError(f"alerts.rules.{name}: {error.message}", hint=error.hint) from error
    wrong = subject_fault(app, rule)
    if wrong is not None:
        raise ConfigError(f"alerts.rules.{name}: {wrong[0]}", hint=wrong[1])
    return rule


def _expect_known(name: str, found: dict[str, Rule]) -> None:
    if name not in found:
        raise ConfigError(
            f"alerts.rules.{name} is off, and there is no such rule", hint=f"there are: {', '.join(found)}"
        )
