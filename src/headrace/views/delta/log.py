"""What a Delta table's own log says of a view: its position, in the ``commitInfo`` of the commit that it belongs to.

    {"commitInfo": {"operation": "MERGE", …, "headrace": "{\\"position\\": …, \\"shape\\": …}"}}

Every commit of a follower has it, also those that only tidy up. A commit of somebody else (``OPTIMIZE`` in Spark, say)
has none, and leaves the rows what they are; so the newest commit that has one counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from headrace.views.position import Position, Shape, Standing

__all__ = ["COMMIT_KEY", "LOG", "Told", "actions", "newest_version", "told_at"]

COMMIT_KEY = "headrace"
LOG = "_delta_log"
_VERSION_CHARS = 20


class Told(msgspec.Struct, frozen=True):
    position: Position
    shape: str
    wish: int
    reason: str
    columns: list[str]
    """The table's, in the order of the view's."""

    @property
    def standing(self) -> Standing:
        return Standing(Shape.told(self.shape), self.position, self.wish, self.reason)


def newest_version(table: Path) -> int | None:
    """None if there is no table."""
    try:
        names = os.listdir(table / LOG)  # noqa: PTH208  before every batch
    except (FileNotFoundError, NotADirectoryError):
        return None
    return max((version_of(name) for name in names), default=-1) if names else None


def version_of(name: str) -> int:
    """Of a commit; -1 for other files of the log."""
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "json" and stem.isdigit() and len(stem) == _VERSION_CHARS else -1


def commit_path(table: Path, version: int) -> Path:
    return table / LOG / f"{version:020}.json"


def actions(table: Path, version: int) -> list[dict[str, Any]]:
    """Raises FileNotFoundError if the log has been cleaned of it."""
    return [
        msgspec.json.decode(line) for line in commit_path(table, version).read_bytes().splitlines() if line
    ]


def told_at(table: Path, version: int) -> Told | None:
    """What the rows of this version are as of; None if no commit says so."""
    for one in range(version, -1, -1):
        try:
            found = actions(table, one)
        except FileNotFoundError:
            return None
        for action in found:
            said = action.get("commitInfo", {}).get(COMMIT_KEY)
            if isinstance(said, str):
                return msgspec.json.decode(said, type=Told)
    return None
