"""``headrace topic add-partitions``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.errors import NotConfirmed
from headrace.cli.parameters import Topic
from headrace.cli.session import Session
from headrace.cli.verb import verb

__all__ = ["add_partitions"]


@verb(
    "add-partitions",
    examples="""
    headrace topic add-partitions orders -n 3
    headrace topic add-partitions orders -n 3 --force
    """,
)
def add_partitions(
    session: Session,
    name: Topic,
    number: Annotated[int, typer.Option("--num", "-n", metavar="N", help="How many to add.", min=1)],
    force: Annotated[
        bool, typer.Option("--force", help="Also for a topic that has had records; see above.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")
    ] = False,
) -> None:
    """Add partitions to a topic.

    A key's partition is computed from the number of partitions. When that changes, most keys move: a key's
    later records are in another partition than its earlier ones, and readers may meet the later ones first.
    A topic that has had records therefore needs --force.
    """
    from headrace.cli.client import open_admin, result_of
    from headrace.cli.kafka_admin import NewPartitions
    from headrace.cli.lookup import bounds_of, partitions_of

    admin = open_admin(session)
    partitions = partitions_of(session, admin, [name])
    before, after = len(partitions), len(partitions) + number
    written = sum(limits.end for limits in bounds_of(session, admin, partitions).values())
    moves = (
        f"{name} has had {written} records: with {after} instead of {before} partitions most keys move to "
        "another one, and the order of a key's records across the change is no longer kept"
    )
    if written and not force and not dry_run:
        raise NotConfirmed(
            moves,
            hint="pass --force if readers can live with that; otherwise copy to a new, wider topic",
        )
    if written:
        session.out.warn(moves)
    if not dry_run:
        futures = admin.create_partitions(
            [NewPartitions(name, after)],
            operation_timeout=session.timeout_s,
            request_timeout=session.timeout_s,
        )
        result_of(futures[name], session, f"adding partitions to {name!r}", topic=name)
    status = "would be added" if dry_run else "added"
    session.out.table([{"topic": name, "before": before, "after": after, "status": status}])
