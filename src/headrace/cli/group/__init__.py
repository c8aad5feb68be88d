"""``headrace group``: one verb per file."""

from __future__ import annotations

from headrace.cli.verb import Noun, noun

__all__ = ["command"]


def command() -> Noun:
    from headrace.cli.group.delete import delete
    from headrace.cli.group.describe import describe
    from headrace.cli.group.list import list_groups
    from headrace.cli.group.offset_delete import offset_delete
    from headrace.cli.group.seek import seek

    return noun(
        "group",
        "List, describe, move and delete consumer groups.",
        [list_groups, describe, seek, offset_delete, delete],
    )
