"""``headrace topic list``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import verb

__all__ = ["list_topics"]


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
    """List topics, with their partitions and copies."""
    import re

    from headrace.cli.client import cluster_metadata, open_admin
    from headrace.cli.errors import UsageError

    try:
        matcher = re.compile(pattern) if pattern is not None else None
    except re.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None
    topics = cluster_metadata(session, open_admin(session)).topics
    rows = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(one.replicas) for one in topic.partitions.values()), default=0),
        }
        for name, topic in sorted(topics.items())
        if (internal or not name.startswith("__")) and (matcher is None or matcher.fullmatch(name))
    ]
    session.out.table(rows, empty="no topics" if matcher is None else "no topic matches")
