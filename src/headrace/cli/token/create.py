"""``headrace token create``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import Data

__all__ = ["create"]


@verb(
    "create",
    examples="""
    headrace token create dashboard --scope 'read:view:*'
    headrace token create till --scope write:topic:orders --scope read:view:orders --days 90
    headrace token create me --scope admin
    """,
    reference=[
        (
            "Scopes",
            """
            read:view:NAME     read a view; NAME may end in *
            read:topic:NAME    read a topic's records
            write:topic:NAME   write records
            read:operations    metrics, and how far each view is
            admin              everything
            """,
        )
    ],
    shared=("as_json", "quiet", "verbose", "settings_file"),
)
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who it is for.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", "-s", metavar="SCOPE", help="What it allows; may be repeated."),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option("--days", metavar="N", min=1, max=36_500, help="How long; otherwise for ever."),
    ] = None,
    data: Data = None,
) -> None:
    """Make a token, and show it once: only what it hashes to is kept.

    From then on headrace serve lets nobody in without one, on this machine either.
    """
    from headrace.cli.view.options import data_dir
    from headrace.serve.tokens import TokenBook, tokens_path

    book = TokenBook(tokens_path(data_dir(session, data)))
    made, text = book.create(name, scope or [], None if days is None else days * 86_400)
    if session.out.as_json:
        session.out.json_line({"id": made.id, "name": made.name, "scopes": made.scopes, "token": text})
    else:
        session.out.text(text)
    session.out.flush()
    session.out.note("this is the only time that it is shown")
