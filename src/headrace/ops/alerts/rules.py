"""The alert rules of an app. A rule of the app replaces a default rule of the same name.

A rule in the settings replaces both. The value ``off`` in the settings removes a rule.
"""

from __future__ import annotations

from headrace.app import App
from headrace.errors import ConfigError
from headrace.model.mistakes import subject_fault
from headrace.model.names import name_fault
from headrace.model.rule import InvalidRule, Rule, parse_rule
from headrace.settings import AlertSettings

__all__ = ["DEFAULTS", "rules_of"]

DEFAULTS = {
    # Fire one hour before the loss. If retention is less than two hours, fire at half of the retention.
    "time-to-loss": "time_to_loss < 1h and time_to_loss < 50%",
    "lost": "gone > 0",
    "dead-letters": "dead > 0",
}
OFF = "off"


def rules_of(app: App, alerts: AlertSettings) -> dict[str, Rule]:
    """Return the active rules by name. The app must have been checked before."""
    texts = dict(DEFAULTS) if alerts.defaults else {}
    texts |= {alert.name: alert.text for alert in app.alerts}
    rules = {name: parse_rule(text) for name, text in texts.items()}
    for name, text in alerts.rules.items():
        if text.strip().lower() == OFF:
            _check_known(name, rules)
            del rules[name]
        else:
            rules[name] = _from_settings(app, name, text)
    return rules


def _from_settings(app: App, name: str, text: str) -> Rule:
    fault = name_fault(name)
    if fault:
        raise ConfigError(f"alerts.rules: {fault}", hint="choose another name for the rule")
    try:
        rule = parse_rule(text)
    except InvalidRule as error:
        raise ConfigError(f"alerts.rules.{name}: {error.message}", hint=error.hint) from error
    subject = subject_fault(app, rule)
    if subject is not None:
        raise ConfigError(f"alerts.rules.{name}: {subject[0]}", hint=subject[1])
    return rule


def _check_known(name: str, rules: dict[str, Rule]) -> None:
    if name not in rules:
        raise ConfigError(
            f"alerts.rules.{name} is off, but no rule has this name", hint=f"the rules are {', '.join(rules)}"
        )
