"""Mistakes in an alert, given the app that it is in."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from headrace.model.alert import Alert
from headrace.model.declared import Declared
from headrace.model.errors import AppError
from headrace.model.rule import Rule, RuleUnreadable, Subject, parse_rule

__all__ = ["alert_mistakes", "subject_fault"]


def alert_mistakes(app: Declared, alert: Alert) -> Iterator[AppError]:
    def mistake(message: str, hint: str) -> AppError:
        return AppError(f"alert {alert.name!r}: {message}", place=alert.place, code="HR-APP-ALERT", hint=hint)

    given: Any = alert.when
    if not isinstance(given, str):
        yield mistake(f"a rule is text, and {given!r} is not", 'as "lag > 10_000 for 30s"')
        return
    try:
        rule = parse_rule(alert.when)
        if alert.on and rule.subject != Subject():
            yield mistake(f"{alert.when!r} says what it is on, and so does on=", "say it once")
            return
        rule = parse_rule(alert.text)
    except RuleUnreadable as error:
        yield mistake(error.message, error.hint)
        return
    fault = subject_fault(app, rule)
    if fault is not None:
        yield mistake(*fault)


def subject_fault(app: Declared, rule: Rule) -> tuple[str, str] | None:
    """What is wrong with what the rule is on, and what to do; of groups nothing is known before they read."""
    what, name = rule.subject.what, rule.subject.name
    if not name or what == "group":
        return None
    known = [one.name for one in (app.flows if what == "flow" else app.views)]
    if name in known:
        return None
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(known) or 'none'}"
    return f"app {app.name!r} has no {what} {name!r}", hint
