"""``headrace backup``: one verb per file."""

from __future__ import annotations

from headrace.cli.verb import Noun, noun

__all__ = ["command"]


def command() -> Noun:
    from headrace.cli.backup.check import check
    from headrace.cli.backup.list import list_moments
    from headrace.cli.backup.restore import restore
    from headrace.cli.backup.status import status

    return noun(
        "backup",
        "List, check and restore the moments of a broker's backup.",
        [list_moments, status, check, restore],
    )
