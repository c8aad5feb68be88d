"""``headrace alert rules``."""

from __future__ import annotations

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName

__all__ = ["rules"]


@verb(
    "rules",
    examples="""
    headrace alert rules examples.shop:app
    headrace alert rules examples.shop:app --settings production.toml --json
    """,
)
def rules(session: Session, app: AppName) -> None:
    """List the rules in force: the app's, those of the settings, and those that need no declaration."""
    from headrace.cli.view.options import checked_app
    from headrace.ops.alerts.rules import DEFAULTS, rules_of

    loaded, settings = checked_app(app), session.loaded.settings.alerts
    declared = {alert.name for alert in loaded.alerts}
    rows = []
    for name, rule in rules_of(loaded, settings).items():
        origin = "app" if name in declared else "default" if name in DEFAULTS else "settings"
        rows.append(
            {"alert": name, "rule": rule.text, "origin": "settings" if name in settings.rules else origin}
        )
    session.out.table(rows, empty="no rule is in force")
