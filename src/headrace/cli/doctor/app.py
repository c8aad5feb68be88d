"""Checks of an app: import, declarations, and the stores of its views."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.app import App
from headrace.cli.app_loader import load_app
from headrace.cli.doctor.finding import Finding, fine, missing
from headrace.errors import HeadraceError
from headrace.model.declarations import View
from headrace.model.errors import AppMistakes
from headrace.model.graph import check
from headrace.model.store import describe_location
from headrace.settings import Settings
from headrace.stores.registry import check_store

__all__ = ["check_app", "check_stores"]


def check_app(name: str) -> tuple[App | None, list[Finding]]:
    """Return the app, or None if it cannot be loaded, and the findings about it."""
    try:
        app = load_app(name)
        check(app)
    except AppMistakes as error:
        return None, [
            missing("app", f"{mistake.location}: {mistake.message}", mistake.hint or "correct that line")
            for mistake in error.mistakes
        ]
    except HeadraceError as error:
        text = error.message + (f" ({error.detail})" if error.detail else "")
        return None, [missing("app", text, error.hint)]
    counts = f"{len(app.topics)} topics, {len(app.flows)} flows, {len(app.views)} views"
    return app, [fine("app", f"app {app.name}: {counts}")]


def check_stores(app: App, settings: Settings) -> Iterator[Finding]:
    stores: dict[tuple[type, str], list[View]] = {}
    for view in app.views:
        store_location = describe_location(view, app.name, settings.data)
        stores.setdefault((type(view.store), store_location), []).append(view)
    for (_, store_location), views in stores.items():
        text = f"{store_location}, for {', '.join(view.name for view in views)}"
        try:
            remark = check_store(views[0], app.name, settings.data)
        except HeadraceError as error:
            yield missing("store", f"{text}: {error.message}", error.hint)
        else:
            yield fine("store", f"{text}: {remark}" if remark else text)
