"""Finds out which files a run changed.

Synced marks (``headrace.log.mark``) are ignored: the broker may write a mark only seconds after a change of the
records, and the files with the records are compared.
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
    """Compute the digests repeatedly, and return them when two results in a row are equal."""
    paths = list(paths)
    before = None
    while (digests := file_digests(paths)) != before:
        before = digests
        time.sleep(_PAUSE_S)
    return digests


def changed_files(before: dict[Path, str], after: dict[Path, str]) -> list[str]:
    """Return the names of all files that were changed, added or removed."""
    return sorted(str(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path))
