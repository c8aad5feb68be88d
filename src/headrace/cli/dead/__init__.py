"""``headrace dead``: one verb per file."""

from __future__ import annotations

from headrace.cli.verb import Noun, noun

__all__ = ["command"]


def command() -> Noun:
    from headrace.cli.dead.list import list_dead
    from headrace.cli.dead.replay import replay
    from headrace.cli.dead.show import show

    return noun("dead", "List and show dead letters, and write them back.", [list_dead, show, replay])
