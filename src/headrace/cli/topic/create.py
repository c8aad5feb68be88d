"""``headrace topic create``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.errors import CliError, TopicExists
from headrace.cli.session import Session, parse_pairs
from headrace.cli.verb import verb

__all__ = ["create"]


@verb(
    "create",
    examples="""
    headrace topic create orders
    headrace topic create orders clicks -p 3 -c retention.ms=604800000
    headrace topic create sessions -c cleanup.policy=compact --if-not-exists
    """,
)
def create(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of the new topics.")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", help="How many partitions each gets.", min=1)
    ] = 1,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas", "-r", metavar="N", help="Copies of each partition; -1: as the cluster likes."
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic config; may be repeated."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Have the broker check it, and create nothing.")
    ] = False,
) -> None:
    """Create topics."""
    from headrace.cli.client import open_admin, result_of
    from headrace.cli.kafka_admin import NewTopic

    configs = parse_pairs(config or (), "-c")
    admin = open_admin(session)
    wanted = [
        NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=configs)
        for name in names
    ]
    futures = admin.create_topics(
        wanted,
        operation_timeout=session.timeout_s,
        request_timeout=session.timeout_s,
        validate_only=dry_run,
    )
    rows: list[dict[str, object]] = []
    failures: list[CliError] = []
    for name in dict.fromkeys(names):
        try:
            result_of(futures[name], session, f"creating topic {name!r}", topic=name)
            status = "would be created" if dry_run else "created"
        except TopicExists as error:
            if not if_not_exists:
                failures.append(error)
                continue
            status = "exists"
        except CliError as error:
            failures.append(error)
            continue
        rows.append({"topic": name, "status": status})
    session.out.table(rows)
    raise_together(failures, "topics")


def raise_together(failures: list[CliError], things: str) -> None:
    """One failure as it is; several as one that names them all and keeps the first one's exit code."""
    if not failures:
        return
    first = failures[0]
    if len(failures) > 1:
        more = "; ".join(f"{error.message} [{error.code}]" for error in failures[1:])
        first.detail = (
            f"{first.detail}; " * bool(first.detail) + f"{len(failures)} {things} failed, also: {more}"
        )
    raise first
