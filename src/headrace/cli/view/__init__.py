"""``headrace view``: one verb per file."""

from __future__ import annotations

from headrace.cli.verb import Noun, noun

__all__ = ["command"]


def command() -> Noun:
    from headrace.cli.view.describe import describe
    from headrace.cli.view.follow import follow
    from headrace.cli.view.list import list_views
    from headrace.cli.view.rebuild import rebuild
    from headrace.cli.view.switch import switch

    return noun(
        "view",
        "List, describe, follow, rebuild and replace an app's views.",
        [list_views, describe, follow, rebuild, switch],
    )
