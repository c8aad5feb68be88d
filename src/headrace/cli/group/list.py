"""``headrace group list``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.errors import UsageError
from headrace.cli.session import Session
from headrace.cli.verb import verb

__all__ = ["list_groups"]


@verb(
    "list",
    examples="""
    headrace group list
    headrace group list --state stable --state empty
    """,
)
def list_groups(
    session: Session,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="Only groups in this state (stable, empty, …); may be repeated.",
        ),
    ] = None,
) -> None:
    """List consumer groups and their states."""
    from confluent_kafka import ConsumerGroupState

    from headrace.cli.client import open_admin
    from headrace.cli.standing import list_groups as every_group

    names = {one.name.lower().replace("_", "-"): one for one in ConsumerGroupState}
    unknown = [one for one in state or () if one.lower() not in names]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is no state of a group", hint=f"there are: {', '.join(sorted(names))}"
        )
    found = every_group(session, open_admin(session), [names[one.lower()] for one in state or ()])
    rows = [
        {
            "group": group.group_id,
            "state": group.state.name.lower().replace("_", "-"),
            "type": group.type.name.lower(),
        }
        for group in found
    ]
    session.out.table(rows, empty="no groups")
