"""``headrace group delete``."""

from __future__ import annotations

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
    from headrace.cli.client import REQUEST_TIMEOUT_S, open_admin, result_of

    admin = open_admin(session)
    answer = names[0] if len(names) == 1 else "delete"
    confirm(f"The committed offsets of {', '.join(names)} will be deleted.", answer=answer, yes=yes)
    futures = admin.delete_consumer_groups(list(names), request_timeout=REQUEST_TIMEOUT_S)
    rows: list[dict[str, object]] = []
    failures: list[CliError] = []
    for name, future in futures.items():
        try:
            result_of(future, session, f"deleting group {name!r}", group=name, admin=admin)
        except CliError as error:
            failures.append(error)
        else:
            rows.append({"group": name, "status": "deleted"})
    session.out.table(rows)
    raise_together(failures, "groups")
