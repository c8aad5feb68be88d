"""What the commands about dead letters have in common: a topic of them, and places in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import UsageError
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.ops.dead.marks import Marks

__all__ = ["DeadName", "Places", "open_marks", "parse_places"]

DeadName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic of dead letters, as headrace dead list names it.")
]
Places = Annotated[
    list[str] | None, typer.Argument(metavar="PARTITION/OFFSET", help="Which letters, e.g. 0/7.")
]
_OFFSET_DIGITS_MAX = 18


def parse_places(texts: Sequence[str]) -> list[tuple[int, int]]:
    found = []
    for text in texts:
        partition, _, offset = text.partition("/")
        fits = partition.isdecimal() and offset.isdecimal() and len(partition) < 10
        if not fits or len(offset) > _OFFSET_DIGITS_MAX:
            raise UsageError(f"{text!r} is no place of a letter", hint="write PARTITION/OFFSET, e.g. 0/7")
        found.append((int(partition), int(offset)))
    return found


def open_marks(session: Session, data: Path | None, cluster: Cluster, app: App) -> Marks:
    """Beside the app's data, where there is some on this machine; nothing is made for a look."""
    from headrace.cli.view.options import data_dir
    from headrace.ops.dead.marks import Marks, marks_path

    where = data_dir(session, data)
    return Marks(marks_path(where, app.name) if where.is_dir() else None, cluster, app.name)
