"""``headrace token``: create, list and revoke the tokens of ``headrace serve``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Data
from headrace.cli.session import Session
from headrace.cli.verb import CommandGroup, command_group, verb

__all__ = ["command"]


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
            read:view:NAME     read a view; NAME can end in *
            read:topic:NAME    read a topic's records
            write:topic:NAME   write records
            read:operations    read metrics and the position of each view
            admin              everything
            """,
        )
    ],
    shared=("as_json", "quiet", "verbose", "settings_file"),
)
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token, e.g. the client's name.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", "-s", metavar="SCOPE", help="Scope that the token allows; see below. May be repeated."
        ),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            "--days",
            metavar="N",
            min=1,
            max=36_500,
            help="Days until the token expires (default: never).",
        ),
    ] = None,
    data: Data = None,
) -> None:
    """Create a token and print it once. Only its hash is stored.

    Once a token exists, headrace serve requires a token from every client, including clients on this machine.
    """
    from headrace.serve.http.tokens import TokenBook, tokens_path

    book = TokenBook(tokens_path(session.data_dir(data)))
    token, text = book.create(name, scope or [], None if days is None else days * 86_400)
    if session.out.as_json:
        session.out.json_line({"id": token.id, "name": token.name, "scopes": token.scopes, "token": text})
    else:
        session.out.text(text)
    session.out.flush()
    session.out.note("the token is not shown again")


@verb(
    "list",
    examples="""
    headrace token list
    headrace token list --json
    """,
    shared=("as_json", "quiet", "verbose", "settings_file"),
)
def list_tokens(session: Session, data: Data = None) -> None:
    """List tokens, their scopes and when they expire."""
    from datetime import UTC, datetime

    from headrace.clock import SystemClock
    from headrace.serve.http.tokens import TokenBook, tokens_path

    now = SystemClock().now_ms()

    def time(ms: int | None) -> str | None:
        return None if ms is None else datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    rows = [
        {
            "name": token.name,
            "id": token.id,
            "state": token.state(now),
            "scopes": token.scopes,
            "created": time(token.created_ms),
            "expires": time(token.expires_ms),
            "revoked": time(token.revoked_ms),
        }
        for token in TokenBook(tokens_path(session.data_dir(data))).tokens()
    ]
    session.out.table(rows, empty="no tokens")


@verb(
    "revoke",
    examples="""
    headrace token revoke dashboard
    """,
    shared=("as_json", "quiet", "verbose", "settings_file"),
)
def revoke(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="Name or id of the token.")],
    data: Data = None,
) -> None:
    """Revoke a token. The server rejects it within a second."""
    from headrace.serve.http.tokens import TokenBook, tokens_path

    revoked = TokenBook(tokens_path(session.data_dir(data))).revoke(name)
    session.out.note(f"token {revoked.name} ({revoked.id}) is revoked")


def command() -> CommandGroup:
    return command_group(
        "token", "Create, list and revoke the tokens of headrace serve.", [create, list_tokens, revoke]
    )
