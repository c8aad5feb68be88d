"""``headrace view rebuild``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data

__all__ = ["rebuild"]


@verb(
    "rebuild",
    examples="""
    headrace view rebuild examples.shop:app revenue
    """,
    shared=("as_json", "quiet", "verbose"),
)
def rebuild(
    session: Session,
    app: AppName,
    views: Annotated[list[str], typer.Argument(metavar="VIEW", help="Names of views.")],
    data: Data = None,
) -> None:
    """Have views built again from the first offset, beside what serves.

    It is done by whoever follows them: a follower that runs begins at once, otherwise the next one that is started.
    What is there serves until the new rows have come as far.
    """
    import contextlib

    from headrace.cli.view.options import checked_app, data_dir, views_of
    from headrace.cli.view.stored import known_parts
    from headrace.views.opening import open_store

    loaded, where = checked_app(app), data_dir(session, data)
    rows = []
    for view in views_of(loaded, views):
        if not known_parts(loaded, view, where):
            rows.append({"view": view.name, "status": "not built yet; the first follower builds it"})
            continue
        with contextlib.closing(open_store(view, loaded.name, where)) as store:
            store.ask_rebuild()
        rows.append({"view": view.name, "status": "will be rebuilt"})
    session.out.table(rows)
