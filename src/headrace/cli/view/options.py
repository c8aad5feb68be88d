"""What the commands about views have in common: the app, some of its views, and where its data is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import ViewUnknown
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.model.view import View

__all__ = ["AppName", "Data", "Views", "answering", "checked_app", "data_dir", "views_of"]

AppName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, as Python would import it.")]
Views = Annotated[list[str] | None, typer.Argument(metavar="VIEW", help="Names of views; without one, all.")]
Data = Annotated[
    Path | None, typer.Option("--data", "-d", metavar="DIR", help="Where the log, state and views are kept.")
]


def checked_app(name: str) -> App:
    """Looked at as a whole, so that nothing is done for an app that makes no sense."""
    from headrace.cli.app_loading import load_app
    from headrace.model.graph import check

    app = load_app(name)
    check(app)
    return app


def data_dir(session: Session, given: Path | None) -> Path:
    from headrace.cli.settings import settings_for

    return given or settings_for(session).data


def answering(session: Session, app: App, name: str) -> str:
    """The view that a name is answered by. Without a broker, the one that has it."""
    from headrace.cli.errors import BrokerUnreachable
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.client.errors import LogError
    from headrace.client.names import names_of

    try:
        check_reachable(session.bootstrap)
        return names_of(cluster_of(session), app.name).get(name, name)
    except (BrokerUnreachable, LogError):
        return name


def views_of(app: App, names: Sequence[str] | None) -> list[View]:
    known = {view.name: view for view in app.views}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ViewUnknown(app.name, unknown[0], list(known))
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())
