"""``headrace view``: list, describe, follow, rebuild and replace the views of an app."""

from __future__ import annotations

from headrace.cli.verb import CommandGroup, command_group

__all__ = ["command"]


def command() -> CommandGroup:
    from headrace.cli.view.changes import rebuild, switch
    from headrace.cli.view.follow import follow
    from headrace.cli.view.listing import describe, list_views

    return command_group(
        "view",
        "List, describe, follow, rebuild and replace an app's views.",
        [list_views, describe, follow, rebuild, switch],
    )
