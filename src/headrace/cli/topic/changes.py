"""``headrace topic create``, ``alter``, ``trim`` and ``delete``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.errors import CliError, TopicExists, UsageError, raise_first
from headrace.cli.offset_range import Kind, parse_position
from headrace.cli.options import DryRun, Partitions, Topic, Topics, Yes, confirm
from headrace.cli.session import Session, parse_pairs
from headrace.cli.verb import verb

__all__ = ["alter", "create", "delete", "trim"]


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
        int,
        typer.Option("--partitions", "-p", metavar="N", help="Number of partitions of each topic.", min=1),
    ] = 1,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas", "-r", metavar="N", help="Replicas of each partition; -1 for the cluster's default."
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set a topic config; may be repeated."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do not fail for a topic that already exists.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "-n", help="Let the broker check the request without creating topics."),
    ] = False,
) -> None:
    """Create topics."""
    from headrace.cli.kafka import NewTopic, result_of

    configs = parse_pairs(config or (), "-c")
    new_topics = [
        NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=configs)
        for name in names
    ]
    futures = (
        session.cluster()
        .admin()
        .create_topics(
            new_topics,
            operation_timeout=session.timeout_s,
            request_timeout=session.timeout_s,
            validate_only=dry_run,
        )
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
    raise_first(failures, "topics")


@verb(
    "alter",
    examples="""
    headrace topic alter orders --set retention.ms=86400000
    headrace topic alter orders --set segment.bytes=67108864 --unset retention.ms
    """,
)
def alter(
    session: Session,
    name: Topic,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a config; may be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="KEY", help="Reset a config to its default; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "-n", help="Let the broker check the request without changing configs."),
    ] = False,
) -> None:
    """Change a topic's configs.

    Configs that are not named keep their values.
    """
    from headrace.cli.kafka import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
        describe_topics,
        result_of,
    )

    values = parse_pairs(set_ or (), "--set")
    both = values.keys() & set(unset or ())
    if both:
        raise UsageError(f"--set and --unset both name {', '.join(sorted(both))}", hint="use one of them")
    if not values and not unset:
        raise UsageError("nothing to change", hint="pass --set key=value or --unset key")
    describe_topics(session, [name])
    operations = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()
    ]
    operations += [
        ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset or ()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=operations)
    futures = (
        session.cluster()
        .admin()
        .incremental_alter_configs([resource], validate_only=dry_run, request_timeout=session.timeout_s)
    )
    result_of(next(iter(futures.values())), session, f"changing topic {name!r}", topic=name)
    status = "would change" if dry_run else "changed"
    rows = [{"topic": name, "config": key, "value": value, "status": status} for key, value in values.items()]
    rows += [{"topic": name, "config": key, "value": "(default)", "status": status} for key in unset or ()]
    session.out.table(rows)


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
            "--before", metavar="OFFSET|@TIME", help="First record that remains: 1000, @-7d, -100, end."
        ),
    ],
    partitions: Partitions = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete the oldest records of a topic."""
    from confluent_kafka import TopicPartition

    from headrace.cli.kafka import bounds_of, offsets_of, parse_partitions, partitions_of, result_of
    from headrace.clock import SystemClock

    position = parse_position(before, SystemClock().now_ms())
    bounds = bounds_of(session, partitions_of(session, [name], parse_partitions(partitions)))
    targets = offsets_of(session, position, bounds)
    for (_, number), offset in targets.items():
        end = bounds[name, number].end
        if position.kind is Kind.EXACT and offset > end:
            raise UsageError(
                f"offset {offset} is beyond the end of {name} [{number}], which is {end}",
                hint="select partitions with -p, or write --before end",
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
    new_starts = [TopicPartition(name, row["partition"], row["new_start"]) for row in rows if row["deleted"]]
    futures = (
        session.cluster()
        .admin()
        .delete_records(new_starts, operation_timeout=session.timeout_s, request_timeout=session.timeout_s)
    )
    for partition, future in futures.items():
        number = partition.partition
        operation = f"deleting records of {name} [{number}]"
        result = result_of(future, session, operation, topic=name, partition=number)
        rows[[row["partition"] for row in rows].index(number)]["new_start"] = result.low_watermark
    session.out.table(rows)


@verb(
    "delete",
    examples="""
    headrace topic delete orders
    headrace topic delete orders clicks --yes
    """,
)
def delete(session: Session, names: Topics, yes: Yes = False) -> None:
    """Delete topics and all their records."""
    from headrace.cli.kafka import bounds_of, partitions_of, result_of

    bounds = bounds_of(session, partitions_of(session, list(dict.fromkeys(names))))
    records = sum(limits.end - limits.start for limits in bounds.values())
    answer = names[0] if len(names) == 1 else "delete"
    confirm(f"{', '.join(names)} and {records} records will be deleted.", answer=answer, yes=yes)
    futures = (
        session.cluster()
        .admin()
        .delete_topics(list(names), operation_timeout=session.timeout_s, request_timeout=session.timeout_s)
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
    raise_first(failures, "topics")
