"""What the commands about backups have in common: the folder, how times are shown, and progress."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import UsageError
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.broker.backup.folder import BackupFolder

__all__ = ["Folder", "Progress", "To", "folder_of", "shown_time"]

_EVERY_S = 2.0

Folder = Annotated[
    Path | None,
    typer.Argument(metavar="FOLDER", help="The broker's --backup; without it, the setting broker.backup."),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="MOMENT", help="A moment by its number; see headrace backup list."),
]


def folder_of(session: Session, given: Path | None, *, accepts_unauthentic: bool = False) -> BackupFolder:
    from headrace.broker.backup.authenticity import read_key
    from headrace.broker.backup.folder import BackupFolder

    broker = session.loaded.settings.broker
    path = given or broker.backup
    if path is None:
        raise UsageError("no backup is named", hint="give its folder, or set broker.backup")
    key = read_key(broker)
    return BackupFolder(path, key=key, accepts_unauthentic=accepts_unauthentic)


def shown_time(ms: int) -> str:
    when = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


class Progress:
    """A line every two seconds, so nothing for what takes no longer."""

    def __init__(self, session: Session, what: str, total: int) -> None:
        self._session = session
        self._what = what
        self._total = total
        self._done = 0
        self._said = time.monotonic()

    def moved(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._said >= _EVERY_S:
            self._said = now
            share = min(100, 100 * self._done // max(self._total, 1))
            self._session.out.note(
                f"{self._what}: {self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB, {share} %"
            )
