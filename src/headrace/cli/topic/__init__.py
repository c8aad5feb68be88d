"""``headrace topic``: create, list, describe, change and delete topics."""

from __future__ import annotations

from headrace.cli.verb import CommandGroup, command_group

__all__ = ["command"]


def command() -> CommandGroup:
    from headrace.cli.topic.add_partitions import add_partitions
    from headrace.cli.topic.changes import alter, create, delete, trim
    from headrace.cli.topic.listing import describe, list_topics

    return command_group(
        "topic",
        "Create, list, describe, change and delete topics.",
        [create, list_topics, describe, alter, add_partitions, trim, delete],
    )
