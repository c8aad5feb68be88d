"""What a Delta table's own log says of a view: its position, in the ``commitInfo`` of the commit that it belongs to.

    {"commitInfo": {"operation": "MERGE", …, "headrace": "{\\"position\\": …, \\"shape\\": …}"}}

Every commit of a follower has it, also those that only tidy up. A commit of somebody else has none, and the newest that
has one counts. If others have only tidied up since (``OPTIMIZE`` in Spark, say), the rows are what they were; if they
have changed rows or columns, that is the fault of what is there (``Standing.fault``), which every later commit of a
follower repeats, until the table is built anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from headrace.views.position import Position, Shape, Standing

__all__ = [
    "CHECKPOINT",
    "COMMIT_KEY",
    "LOG",
    "Told",
    "actions",
    "commit_path",
    "newest_version",
    "told_at",
    "version_of",
]

COMMIT_KEY = "headrace"
LOG = "_delta_log"
CHECKPOINT = ".checkpoint.parquet"
_VERSION_CHARS = 20


class Told(msgspec.Struct, frozen=True):
    position: Position
    shape: str
    wish: int
    reason: str
    columns: list[str]
    """The table's, in the order of the view's."""
    fault: str = ""

    @property
    def standing(self) -> Standing:
        return Standing(Shape.told(self.shape), self.position, self.wish, self.reason, self.fault)


def newest_version(table: Path) -> int | None:
    """None if there is no table: also where a log lacks its beginning, as it is left by a removal that was not in one
    step, or that a commit came behind.
    """
    try:
        names = os.listdir(table / LOG)  # noqa: PTH208  before every batch
    except (FileNotFoundError, NotADirectoryError):
        return None
    if commit_path(table, 0).name not in names and not any(one.endswith(CHECKPOINT) for one in names):
        return None
    return max((version_of(name) for name in names), default=-1)


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
    fault = ""
    for one in range(version, -1, -1):
        try:
            found = actions(table, one)
        except FileNotFoundError:
            return None
        said = next(
            (info[COMMIT_KEY] for info in _infos(found) if isinstance(info.get(COMMIT_KEY), str)), None
        )
        if said is not None:
            told = msgspec.json.decode(said, type=Told)
            return msgspec.structs.replace(told, fault=fault) if fault else told
        if any(map(_changes_rows, found)):
            what = next((info.get("operation") for info in _infos(found)), None)
            fault = f"somebody else has changed it by version {one} ({what or 'no operation is named'})"
    return None


def _infos(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["commitInfo"] for one in found if isinstance(one.get("commitInfo"), dict)]


def _changes_rows(action: dict[str, Any]) -> bool:
    """Rows or columns."""
    file = action.get("add") or action.get("remove")
    return "metaData" in action or (file is not None and file.get("dataChange") is not False)
