"""``headrace group delete``."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any

from headrace.cli.errors import CliError
from headrace.cli.parameters import Groups, Yes, confirm
from headrace.cli.session import Session
from headrace.cli.topic.create import raise_together
from headrace.cli.verb import verb

__all__ = ["delete"]


@verb(
    "delete",
    examples="""
    headrace group delete billing
    headrace group delete billing shipping --yes
    """,
)
def delete(session: Session, names: Groups, yes: Yes = False) -> None:
    """Delete groups and their committed offsets."""
    from headrace.cli.client import group_answer, open_admin

    admin = open_admin(session)
    answer = names[0] if len(names) == 1 else "delete"
    confirm(f"The committed offsets of {', '.join(names)} will be deleted.", answer=answer, yes=yes)
    rows: list[dict[str, object]] = []
    failures: list[CliError] = []
    for name in dict.fromkeys(names):
        ask = partial(_delete_one, session, admin, name)
        try:
            group_answer(ask, session, f"deleting group {name!r}", group=name)
        except CliError as error:
            failures.append(error)
        else:
            rows.append({"group": name, "status": "deleted"})
    session.out.table(rows)
    raise_together(failures, "groups")


def _delete_one(session: Session, admin: Any, name: str) -> Future[None]:
    future: Future[None] = admin.delete_consumer_groups([name], request_timeout=session.timeout_s)[name]
    return future
