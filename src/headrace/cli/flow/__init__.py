"""``headrace flow``: one verb per file."""

from __future__ import annotations

from headrace.cli.verb import Noun, noun

__all__ = ["command"]


def command() -> Noun:
    from headrace.cli.flow.list import list_flows
    from headrace.cli.flow.rebuild import rebuild
    from headrace.cli.flow.run import run

    return noun("flow", "List, run and rebuild an app's flows.", [list_flows, run, rebuild])
