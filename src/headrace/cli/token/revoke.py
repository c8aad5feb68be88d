"""``headrace token revoke``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import Data

__all__ = ["revoke"]


@verb(
    "revoke",
    examples="""
    headrace token revoke dashboard
    """,
    shared=("as_json", "quiet", "verbose", "settings_file"),
)
def revoke(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="Which one.")],
    data: Data = None,
) -> None:
    """Revoke a token: whoever has it is refused within a second."""
    from headrace.cli.view.options import data_dir
    from headrace.serve.tokens import TokenBook, tokens_path

    gone = TokenBook(tokens_path(data_dir(session, data))).revoke(name)
    session.out.note(f"token {gone.name} ({gone.id}) is revoked")
