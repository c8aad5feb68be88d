"""``headrace group``: list and describe consumer groups, move and delete their offsets."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import BrokerRefused, GroupActive, GroupUnknown, UsageError, raise_first
from headrace.cli.offset_range import parse_position
from headrace.cli.options import DryRun, Group, Groups, Yes, complete_topics, confirm
from headrace.cli.session import Session
from headrace.cli.verb import CommandGroup, command_group, verb
from headrace.client.offset_spec import plan_moves
from headrace.clock import SystemClock

if TYPE_CHECKING:
    from headrace.client.group_admin import Group as GroupDescription
    from headrace.client.group_admin import Member

__all__ = ["command"]


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
            help="List only groups in this state (stable, empty, …); may be repeated.",
        ),
    ] = None,
) -> None:
    """List consumer groups and their states."""
    from confluent_kafka import ConsumerGroupState

    from headrace.cli.group_lag import GroupLagReader, state_text

    known = {state_text(state.name) for state in ConsumerGroupState}
    wanted = [name.lower() for name in state or ()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is not a group state", hint=f"use one of: {', '.join(sorted(known))}"
        )
    with closing(GroupLagReader(session)) as groups:
        rows = [
            {"group": name, "state": state_name, "type": kind}
            for name, (state_name, kind) in groups.list_groups(wanted).items()
        ]
    session.out.table(rows, empty="no groups")


@verb(
    "describe",
    examples="""
    headrace group describe billing
    headrace group describe billing shipping --json
    """,
)
def describe(session: Session, names: Groups) -> None:
    """Describe groups: members, partitions and lag.

    Each partition has the committed and the end offset, the lag, and the age in seconds of the next record to read.
    """
    from headrace.cli.group_lag import GroupLagReader, next_record_ages, state_text

    with closing(GroupLagReader(session)) as groups:
        described = {name: groups.describe(name) for name in dict.fromkeys(names)}
        assigned = {name: _members_by_partition(group) for name, group in described.items()}
        lags = groups.lags(list(described), assigned=assigned)
    ages = next_record_ages(session, lags, SystemClock().now_ms())
    for index, (name, group) in enumerate(described.items()):
        rows = []
        for lag in lags:
            if lag.group != name:
                continue
            row = lag.row()
            del row["group"]
            row["age_s"] = ages[lag]
            member = assigned[name].get((lag.topic, lag.partition))
            row["member"] = None if member is None else member.member_id
            row["client"] = None if member is None else member.client_id
            row["host"] = None if member is None else member.host
            rows.append(row)
        if not rows and not group.members:
            raise GroupUnknown(name)
        summary = {
            "group": name,
            "state": state_text(group.state),
            "type": group.type.lower(),
            "assignor": group.assignor,
            "coordinator": group.coordinator,
            "members": len(group.members),
            "total_lag": sum(lag.lag or 0 for lag in lags if lag.group == name),
        }
        if session.out.as_json:
            session.out.json_line({**summary, "partitions": rows, "member_list": _members(group)})
            continue
        if index:
            session.out.text("")
        for label, value in summary.items():
            session.out.text(f"{label.replace('_', ' '):<12}{'-' if value is None else value}")
        session.out.text("")
        if not any(row["gone"] for row in rows):
            for row in rows:
                del row["gone"]
        session.out.table(rows)
    session.out.flush()


def _members_by_partition(group: GroupDescription) -> dict[tuple[str, int], Member]:
    return {partition: member for member in group.members for partition in member.partitions}


def _members(group: GroupDescription) -> list[dict[str, object]]:
    return [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.host,
            "instance": member.instance_id,
            "partitions": len(member.partitions),
        }
        for member in group.members
    ]


@verb(
    "seek",
    examples="""
    headrace group seek billing --to start --dry-run
    headrace group seek billing --to @-1h --topic orders
    headrace group seek billing --to -100 --topic orders:0,2
    """,
    reference=[
        (
            "Offsets",
            """
            start, end    the oldest record; the end, where the next record is written
            47            exactly offset 47
            +10, -10      ten after the start; ten before the end
            @-1h          the first record written at or after a time; also @2026-11-15T09:30:00Z
            """,
        )
    ],
)
def seek(
    session: Session,
    name: Group,
    to: Annotated[
        str, typer.Option("--to", metavar="OFFSET|@TIME", help="Where the group reads next; see below.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITIONS]",
            help="Move only this topic (default: all partitions with a committed offset); may be repeated.",
            autocompletion=complete_topics,
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Move a group's committed offsets.

    Stop the group's members first. Active members would continue from their own positions and overwrite the new
    offsets.
    """
    from headrace.cli.group_lag import GroupLagReader
    from headrace.cli.kafka import bounds_of, offsets_of, partitions_of

    position = parse_position(to, SystemClock().now_ms())
    chosen = _parse_topics(topic or ())
    with closing(GroupLagReader(session)) as groups:
        committed = groups.committed([name])[name]
        if chosen:
            partitions = [
                partition
                for topic_name, only in chosen.items()
                for partition in partitions_of(session, [topic_name], only)
            ]
        elif committed:
            partitions = list(committed)
        else:
            raise GroupUnknown(name)
        bounds = bounds_of(session, partitions)
        moves = plan_moves(offsets_of(session, position, bounds), committed, bounds)
        for move in moves:
            if not move.is_in_range:
                raise UsageError(
                    f"offset {move.new} is not in {move.topic} [{move.partition}],"
                    f" which starts at {move.bounds.start} and ends at {move.bounds.end}",
                    hint="write --to start or --to end, or select partitions with --topic TOPIC:0,2",
                )
        _check_idle(session, name, groups.describe(name), dry_run=dry_run)
        if not dry_run:
            groups.alter_offsets(name, [(move.topic, move.partition, move.new) for move in moves])
    status = "would move" if dry_run else "moved"
    session.out.table([{"group": name, **move.row(), "status": status} for move in moves])


def _parse_topics(texts: Iterable[str]) -> dict[str, list[int]]:
    """Parse ``orders`` or ``orders:0,2``. An empty list means all partitions."""
    from headrace.cli.kafka import parse_partitions

    topics: dict[str, list[int]] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        if not name or (colon and not numbers):
            raise UsageError(f"--topic {text!r} is not TOPIC or TOPIC:PARTITIONS", hint="e.g. orders:0,2")
        topics[name] = parse_partitions(numbers)
    return topics


def _check_idle(session: Session, name: str, group: GroupDescription, *, dry_run: bool) -> None:
    if not group.members:
        return
    clients = ", ".join(sorted({f"{member.client_id} at {member.host}" for member in group.members})[:5])
    message = (
        f"group {name!r} has {len(group.members)} active member{'s' * (len(group.members) > 1)}: {clients}"
    )
    if dry_run:
        session.out.warn(f"{message}; stop them before you move the group")
        return
    raise GroupActive(message, hint="stop the members first; --dry-run shows the changes without making them")


@verb(
    "offset-delete",
    examples="""
    headrace group offset-delete billing --topic orders
    headrace group offset-delete billing --topic orders:0,2 --topic clicks --yes
    """,
)
def offset_delete(
    session: Session,
    name: Group,
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITIONS]",
            help="Delete the offsets of this topic; may be repeated.",
            autocompletion=complete_topics,
        ),
    ],
    yes: Yes = False,
) -> None:
    """Delete committed offsets of a group.

    The group then reads these partitions as if it had never read them before. The broker rejects the request for topics
    to which members of the group are subscribed.
    """
    from headrace.cli.group_lag import GroupLagReader
    from headrace.cli.raw_request import error_name, find_coordinator, request
    from headrace.wire import Api, ErrorCode
    from headrace.wire import messages as m

    chosen = _parse_topics(topic)
    with closing(GroupLagReader(session)) as groups:
        committed = groups.committed([name])[name]
    partitions = [
        (topic_name, number)
        for topic_name, number in committed
        if topic_name in chosen and (not chosen[topic_name] or number in chosen[topic_name])
    ]
    if not committed:
        raise GroupUnknown(name)
    if not partitions:
        session.out.note(f"group {name!r} has no committed offsets in the named partitions")
        return
    confirm(f"{len(partitions)} committed offsets of {name} will be deleted.", answer=name, yes=yes)
    topics = [
        m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=topic_name,
            partitions=[
                m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number)
                for other, number in partitions
                if other == topic_name
            ],
        )
        for topic_name in dict.fromkeys(topic_name for topic_name, _ in partitions)
    ]
    body = m.OffsetDeleteRequest(group_id=name, topics=topics)
    response = request(*find_coordinator(session, name), Api.OFFSET_DELETE, 0, body)
    codes = [
        response.error_code,
        *(partition.error_code for topic_result in response.topics for partition in topic_result.partitions),
    ]
    if ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC in codes or ErrorCode.NON_EMPTY_GROUP in codes:
        raise GroupActive(
            f"members of group {name!r} are reading {' and '.join(chosen)}", hint="stop the members first"
        )
    failed = next((code for code in codes if code), 0)
    if failed:
        raise BrokerRefused(
            f"deleting offsets of group {name!r}: {error_name(failed)}", name=error_name(failed)
        )
    session.out.table(
        [
            {
                "group": name,
                "topic": topic_name,
                "partition": number,
                "old": committed[topic_name, number],
                "status": "deleted",
            }
            for topic_name, number in partitions
        ]
    )


@verb(
    "delete",
    examples="""
    headrace group delete billing
    headrace group delete billing shipping --yes
    """,
)
def delete(session: Session, names: Groups, yes: Yes = False) -> None:
    """Delete groups and their committed offsets."""
    from headrace.cli.group_lag import GroupLagReader

    with closing(GroupLagReader(session)) as groups:
        answer = names[0] if len(names) == 1 else "delete"
        confirm(
            f"The committed offsets of {', '.join(map(repr, names))} will be deleted.", answer=answer, yes=yes
        )
        wanted = list(dict.fromkeys(names))
        failures = groups.delete(wanted)
    session.out.table([{"group": name, "status": "deleted"} for name in wanted if name not in failures])
    raise_first(list(failures.values()), "groups")


def command() -> CommandGroup:
    return command_group(
        "group",
        "List, describe, move and delete consumer groups.",
        [list_groups, describe, seek, offset_delete, delete],
    )
