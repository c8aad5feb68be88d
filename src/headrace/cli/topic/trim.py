"""``headrace topic trim``: delete the oldest records now, without waiting for retention."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.errors import UsageError
from headrace.cli.offsets import Kind, parse_place
from headrace.cli.parameters import DryRun, Partitions, Topic, Yes, confirm
from headrace.cli.session import Session
from headrace.cli.verb import verb

__all__ = ["trim"]


@verb(
    "trim",
    examples="""
    headrace topic trim orders --before @-7d --dry-run
    headrace topic trim orders --before 1000 -p 0 --yes
    headrace topic trim orders --before end --yes            empties the topic
    """,
)
def trim(
    session: Session,
    name: Topic,
    before: Annotated[
        str,
        typer.Option(
            "--before", metavar="OFFSET|@TIME", help="The first record to keep: 1000, @-7d, -100, end."
        ),
    ],
    partitions: Partitions = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete the oldest records of a topic."""
    from confluent_kafka import TopicPartition

    from headrace.cli.client import open_admin, result_of
    from headrace.cli.lookup import bounds_of, offsets_of, parse_partitions, partitions_of
    from headrace.clock import SystemClock

    place = parse_place(before, SystemClock().now_ms())
    admin = open_admin(session)
    bounds = bounds_of(session, admin, partitions_of(session, admin, [name], parse_partitions(partitions)))
    targets = offsets_of(session, admin, place, bounds)
    for (_, number), offset in targets.items():
        end = bounds[name, number].end
        if place.kind is Kind.EXACT and offset > end:
            raise UsageError(
                f"offset {offset} is beyond the end of {name} [{number}], where the next record gets {end}",
                hint="name partitions with -p, or write --before end",
            )
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "partition": number,
            "start": limits.start,
            "new_start": max(limits.start, targets[name, number]),
            "deleted": max(0, targets[name, number] - limits.start),
        }
        for (_, number), limits in bounds.items()
    ]
    deleted = sum(row["deleted"] for row in rows)
    if dry_run or not deleted:
        session.out.table(rows)
        session.out.note(f"dry run: {deleted} records would be deleted" if dry_run else "nothing to delete")
        return
    confirm(f"{deleted} records of {name} will be deleted.", answer=name, yes=yes)
    wanted = [TopicPartition(name, row["partition"], row["new_start"]) for row in rows if row["deleted"]]
    futures = admin.delete_records(
        wanted, operation_timeout=session.timeout_s, request_timeout=session.timeout_s
    )
    for asked, future in futures.items():
        answer = result_of(
            future,
            session,
            f"deleting records of {name} [{asked.partition}]",
            topic=name,
            partition=asked.partition,
        )
        rows[[row["partition"] for row in rows].index(asked.partition)]["new_start"] = answer.low_watermark
    session.out.table(rows)
