"""Finds out which files a run changed.

The marks of partitions do not count. The broker writes a mark some seconds after the records that it covers, and the
files of records count.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

from headrace.log.mark import MARK_NAME

__all__ = ["changed_files", "file_digests", "stable_digests"]

_PAUSE_S = 0.1


def file_digests(paths: Iterable[Path]) -> dict[Path, str]:
    """Return a digest of each of these files, and of each file and directory below these directories."""
    digests = {}
    for path in paths:
        for entry in [path, *path.rglob("*")]:
            if entry.is_dir():
                digests[entry] = "directory"
            elif entry.name != MARK_NAME:
                with contextlib.suppress(FileNotFoundError):
                    digests[entry] = hashlib.sha256(entry.read_bytes()).hexdigest()
    return digests


def stable_digests(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the digests as soon as they are stable."""
    paths = list(paths)
    before = None
    while (digests := file_digests(paths)) != before:
        before = digests
        time.sleep(_PAUSE_S)
    return digests


def changed_files(before: dict[Path, str], after: dict[Path, str]) -> list[str]:
    """Return the names of the files that differ, that are new, and that are missing."""
    return sorted(str(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path))
