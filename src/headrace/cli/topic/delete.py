"""``headrace topic delete``."""

from __future__ import annotations

from headrace.cli.errors import CliError
from headrace.cli.parameters import Topics, Yes, confirm
from headrace.cli.session import Session
from headrace.cli.topic.create import raise_together
from headrace.cli.verb import verb

__all__ = ["delete"]


@verb(
    "delete",
    examples="""
    headrace topic delete orders
    headrace topic delete orders clicks --yes
    """,
)
def delete(session: Session, names: Topics, yes: Yes = False) -> None:
    """Delete topics and all their records."""
    from headrace.cli.client import open_admin, result_of
    from headrace.cli.lookup import bounds_of, partitions_of

    admin = open_admin(session)
    bounds = bounds_of(session, admin, partitions_of(session, admin, list(dict.fromkeys(names))))
    records = sum(limits.end - limits.start for limits in bounds.values())
    answer = names[0] if len(names) == 1 else "delete"
    confirm(f"{', '.join(names)} and {records} records will be deleted.", answer=answer, yes=yes)
    futures = admin.delete_topics(
        list(names), operation_timeout=session.timeout_s, request_timeout=session.timeout_s
    )
    rows: list[dict[str, object]] = []
    failures: list[CliError] = []
    for name, future in futures.items():
        try:
            result_of(future, session, f"deleting topic {name!r}", topic=name)
        except CliError as error:
            failures.append(error)
        else:
            rows.append({"topic": name, "status": "deleted"})
    session.out.table(rows)
    raise_together(failures, "topics")
