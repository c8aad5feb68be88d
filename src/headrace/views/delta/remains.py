"""What is left of a table that was removed under its writer.

Whoever removes a folder may do it while a commit is being made: the library then makes the folder again for a file that
it writes, and no table is in it. That is a follower's and may go; what anybody else has put there may not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.views.delta.log import COMMIT_KEY, LOG

__all__ = ["are_remains"]

_DATA = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}(\.\w+)*\.parquet")
# As a file is called that is not yet whole.
_UNFINISHED = re.compile(
    r"(part-\d{5}-[0-9a-f-]{36}-c\d{3}(\.\w+)*\.parquet|\d{20}\.json)#\d+|_commit_.*\.tmp"
)
_MADE_BY = ("delta-rs", "parquet-rs")


def are_remains(folder: Path, columns: Sequence[str]) -> bool:
    """Whether there is nothing but data with these columns, and commits of a follower. ``folder`` has no table."""
    return all(
        all(map(_is_commit, path.iterdir()))
        if path.name == LOG and path.is_dir()
        else _is_data(path, columns)
        for path in folder.iterdir()
    )


def _is_data(path: Path, columns: Sequence[str]) -> bool:
    if _UNFINISHED.fullmatch(path.name):
        return True
    if not _DATA.fullmatch(path.name):
        return False
    try:
        found = pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return False
    return bool(
        found.created_by.startswith(_MADE_BY) and found.schema.to_arrow_schema().names == list(columns)
    )


def _is_commit(path: Path) -> bool:
    if _UNFINISHED.fullmatch(path.name):
        return True
    try:
        lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line]
    except (OSError, msgspec.DecodeError):
        return False
    return any(COMMIT_KEY in one.get("commitInfo", {}) for one in lines)
