"""``headrace topic list``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.errors import TopicUnknown
from headrace.cli.session import Session
from headrace.cli.verb import verb

__all__ = ["list_topics"]

_ASKED_AT_ONCE = 500


@verb(
    "list",
    examples="""
    headrace topic list
    headrace topic list 'orders.*'
    headrace topic list --json | jq -r .topic
    """,
)
def list_topics(
    session: Session,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN", help="Only topics whose whole name matches this regular expression."
        ),
    ] = None,
    internal: Annotated[
        bool, typer.Option("--internal", "-i", help="Also the cluster's own topics.")
    ] = False,
) -> None:
    """List topics, with their partitions and copies.

    Where some are volatile, that is said as well.
    """
    import re

    from headrace.cli.client import cluster_metadata, open_admin
    from headrace.cli.errors import UsageError

    try:
        matcher = re.compile(pattern) if pattern is not None else None
    except re.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None
    admin = open_admin(session)
    topics = cluster_metadata(session, admin).topics
    rows = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(one.replicas) for one in topic.partitions.values()), default=0),
        }
        for name, topic in sorted(topics.items())
        if (internal or not name.startswith("__")) and (matcher is None or matcher.fullmatch(name))
    ]
    volatile = _volatile(session, admin, [str(row["topic"]) for row in rows])
    if volatile:
        rows = [row | {"volatile": "in memory only" if row["topic"] in volatile else ""} for row in rows]
    session.out.table(rows, empty="no topics" if matcher is None else "no topic matches")


def _volatile(session: Session, admin: Any, names: list[str]) -> set[str]:
    """Those of the topics that are kept in memory only."""
    from headrace.cli.client import result_of
    from headrace.cli.kafka_admin import ConfigResource, ResourceType
    from headrace.truth import is_volatile

    found: set[str] = set()
    for first in range(0, len(names), _ASKED_AT_ONCE):
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names[first : first + _ASKED_AT_ONCE]]
        futures = admin.describe_configs(asked, request_timeout=session.timeout_s)
        for resource, future in futures.items():
            try:
                entries = result_of(future, session, "asking for configs", topic=resource.name)
            except TopicUnknown:
                continue  # It was deleted meanwhile.
            if is_volatile({name: entry.value for name, entry in entries.items()}):
                found.add(resource.name)
    return found
