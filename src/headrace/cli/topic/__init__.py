"""``headrace topic``: one verb per file."""

from __future__ import annotations

from headrace.cli.verb import Noun, noun

__all__ = ["command"]


def command() -> Noun:
    from headrace.cli.topic.add_partitions import add_partitions
    from headrace.cli.topic.alter import alter
    from headrace.cli.topic.create import create
    from headrace.cli.topic.delete import delete
    from headrace.cli.topic.describe import describe
    from headrace.cli.topic.list import list_topics
    from headrace.cli.topic.trim import trim

    return noun(
        "topic",
        "Create, list, describe, change and delete topics.",
        [create, list_topics, describe, alter, add_partitions, trim, delete],
    )
