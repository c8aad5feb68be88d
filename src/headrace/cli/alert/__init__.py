"""``headrace alert``: one verb per file."""

from __future__ import annotations

from headrace.cli.verb import Noun, noun

__all__ = ["command"]


def command() -> Noun:
    from headrace.cli.alert.list import list_alerts
    from headrace.cli.alert.rules import rules
    from headrace.cli.alert.watch import watch

    return noun("alert", "Show and watch what is about to be lost.", [list_alerts, rules, watch])
