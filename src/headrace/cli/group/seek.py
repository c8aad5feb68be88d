"""``headrace group seek``: where a group will go on reading."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.completion import complete_topics
from headrace.cli.errors import GroupActive, GroupUnknown, UsageError
from headrace.cli.offsets import parse_place
from headrace.cli.parameters import DryRun, Group
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.client.places import moves_to
from headrace.clock import SystemClock

__all__ = ["parse_topics", "seek"]


@verb(
    "seek",
    examples="""
    headrace group seek billing --to start --dry-run
    headrace group seek billing --to @-1h --topic orders
    headrace group seek billing --to -100 --topic orders:0,2
    """,
    reference=[
        (
            "Places",
            """
            start, end    the oldest record there is; the place of the next one to come
            47            exactly offset 47
            +10, -10      ten after the start; ten before the end
            @-1h          the first record written at or after a moment; also @2026-11-15T09:30:00Z
            """,
        )
    ],
)
def seek(
    session: Session,
    name: Group,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="Where to go on reading; see below.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITIONS]",
            help="Only here; otherwise everything the group has committed. May be repeated.",
            autocompletion=complete_topics,
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Move a group's committed offsets.

    The group's members must be stopped: they would go on where they are and commit over it.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    from headrace.cli.client import group_answer, open_admin
    from headrace.cli.lookup import bounds_of, offsets_of, partitions_of
    from headrace.cli.standing import committed_of

    place = parse_place(to, SystemClock().now_ms())
    chosen = parse_topics(topic or ())
    admin = open_admin(session)
    committed = committed_of(session, admin, [name])[name]
    if chosen:
        partitions = [
            one for wanted, only in chosen.items() for one in partitions_of(session, admin, [wanted], only)
        ]
    elif committed:
        partitions = list(committed)
    else:
        raise GroupUnknown(name)
    bounds = bounds_of(session, admin, partitions)
    targets = offsets_of(session, admin, place, bounds)
    moves = moves_to(targets, committed, bounds)
    for move in moves:
        if not move.fits:
            limits = move.bounds
            raise UsageError(
                f"offset {move.new} is not in {move.topic} [{move.partition}],"
                f" which holds {limits.start} to {limits.end}",
                hint="write --to start or --to end, or name partitions with --topic TOPIC:0,2",
            )
    _check_idle(session, admin, name, dry_run=dry_run)
    if not dry_run:
        places = [TopicPartition(move.topic, move.partition, move.new) for move in moves]
        wanted = [ConsumerGroupTopicPartitions(name, places)]
        answer = group_answer(
            lambda: admin.alter_consumer_group_offsets(wanted, request_timeout=session.timeout_s)[name],
            session,
            f"moving group {name!r}",
            group=name,
        )
        _check_each(session, name, answer.topic_partitions)
    status = "would move" if dry_run else "moved"
    session.out.table([{"group": name, **move.row(), "status": status} for move in moves])


def parse_topics(texts: Any) -> dict[str, list[int]]:
    """``orders`` or ``orders:0,2``; no partitions means all of them."""
    from headrace.cli.lookup import parse_partitions

    chosen: dict[str, list[int]] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        if not name or (colon and not numbers):
            raise UsageError(f"--topic {text!r} is not TOPIC or TOPIC:PARTITIONS", hint="e.g. orders:0,2")
        chosen[name] = parse_partitions(numbers)
    return chosen


def _check_idle(session: Session, admin: Any, name: str, *, dry_run: bool) -> None:
    from headrace.cli.standing import describe_group

    group = describe_group(session, admin, name)
    if not group.members:
        return
    clients = ", ".join(sorted({f"{one.client_id} at {one.host}" for one in group.members})[:5])
    busy = f"group {name!r} has {len(group.members)} active member{'s' * (len(group.members) > 1)}: {clients}"
    if dry_run:
        session.out.warn(f"{busy}; they must be stopped before the group can be moved")
        return
    raise GroupActive(busy, hint="stop them, then seek; what would change is shown with --dry-run")


def _check_each(session: Session, name: str, answers: Any) -> None:
    from headrace.cli.client import translate

    for one in answers:
        if one.error is not None:
            doing = f"moving group {name!r} at {one.topic} [{one.partition}]"
            raise translate(session, one.error, doing, topic=one.topic, group=name)
