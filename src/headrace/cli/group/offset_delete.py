"""``headrace group offset-delete``: forget how far a group has come with some topics."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.completion import complete_topics
from headrace.cli.errors import BrokerRefused, GroupActive, GroupUnknown
from headrace.cli.group.seek import parse_topics
from headrace.cli.parameters import Group, Yes, confirm
from headrace.cli.session import Session
from headrace.cli.verb import verb

__all__ = ["offset_delete"]


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
            help="Which commits to forget; may be repeated.",
            autocompletion=complete_topics,
        ),
    ],
    yes: Yes = False,
) -> None:
    """Delete committed offsets of a group.

    A group that comes back starts with such a topic as if it had never read it. Topics that its members subscribe to
    right now are left alone.
    """
    from headrace.cli.ask import ask, find_coordinator, name_of
    from headrace.cli.client import open_admin
    from headrace.cli.standing import committed_of
    from headrace.wire import Api, ErrorCode
    from headrace.wire import messages as m

    chosen = parse_topics(topic)
    committed = committed_of(session, open_admin(session), [name])[name]
    wanted = [
        (where, number)
        for where, number in committed
        if where in chosen and (not chosen[where] or number in chosen[where])
    ]
    if not committed:
        raise GroupUnknown(name)
    if not wanted:
        session.out.note(f"group {name!r} has committed nothing there")
        return
    confirm(f"{len(wanted)} committed offsets of {name} will be deleted.", answer=name, yes=yes)
    topics = [
        m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=where,
            partitions=[
                m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number)
                for other, number in wanted
                if other == where
            ],
        )
        for where in dict.fromkeys(where for where, _ in wanted)
    ]
    request = m.OffsetDeleteRequest(group_id=name, topics=topics)
    answer = ask(*find_coordinator(session, name), Api.OFFSET_DELETE, 0, request)
    codes = [answer.error_code, *(one.error_code for each in answer.topics for one in each.partitions)]
    if ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC in codes or ErrorCode.NON_EMPTY_GROUP in codes:
        raise GroupActive(
            f"group {name!r} reads {' and '.join(chosen)} right now", hint="stop its members first"
        )
    bad = next((code for code in codes if code), 0)
    if bad:
        raise BrokerRefused(f"deleting offsets of group {name!r}: {name_of(bad)}", name=name_of(bad))
    session.out.table(
        [
            {
                "group": name,
                "topic": where,
                "partition": number,
                "old": committed[where, number],
                "status": "deleted",
            }
            for where, number in wanted
        ]
    )
