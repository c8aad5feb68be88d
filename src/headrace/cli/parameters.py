"""Options and arguments that several verbs share, declared once."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli.completion import complete_groups, complete_topics
from headrace.cli.errors import NotConfirmed

__all__ = ["DryRun", "Group", "Groups", "Partitions", "Topic", "Topics", "Yes", "confirm"]

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topics)
]
Topics = Annotated[
    list[str], typer.Argument(metavar="TOPIC", help="Names of topics.", autocompletion=complete_topics)
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=complete_groups)
]
Groups = Annotated[
    list[str], typer.Argument(metavar="GROUP", help="Names of groups.", autocompletion=complete_groups)
]
Partitions = Annotated[
    str | None, typer.Option("--partitions", "-p", metavar="0,2,5-7", help="Only these partitions.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would happen, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def confirm(question: str, *, answer: str, yes: bool) -> None:
    """Have a person type ``answer``; without a person there must have been a ``--yes``."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotConfirmed(
            f"{question} This cannot be undone, and there is no terminal to ask on",
            hint="pass --yes if that is what you want",
        )
    print(
        f"{question} This cannot be undone. Type {answer!r} to go on: ", end="", file=sys.stderr, flush=True
    )
    if sys.stdin.readline().strip() != answer:
        raise NotConfirmed("nothing was done", hint=f"the answer was not {answer!r}")
