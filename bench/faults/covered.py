"""The code that the runs of a fault cover, and whether it is still what it was when they were made."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["UNKNOWN", "code_digest", "commit_of", "is_stale"]

ROOT = Path(__file__).resolve().parent.parent.parent
UNKNOWN = "unknown"
_DIGITS = 16
_NO_CODE = {".so", ".pyc"}


def code_digest(covers: Sequence[str], root: Path = ROOT) -> str:
    """Of all files in these places, with their names. A place that does not exist counts as such."""
    digest = hashlib.sha256()
    for place in sorted(covers):
        for path in _files(root / place):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(root)} {content}\n".encode())
    return digest.hexdigest()[:_DIGITS]


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    found = sorted(path for path in place.rglob("*") if path.is_file())
    return [path for path in found if path.suffix not in _NO_CODE and "__pycache__" not in path.parts]


def commit_of(covers: Sequence[str], root: Path = ROOT) -> str:
    """The commit that is checked out; unknown if any of these places differs from it, or without Git."""
    try:
        changed = _git(root, "status", "--porcelain", "--", *covers)
        return UNKNOWN if changed else _git(root, "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def is_stale(row: Mapping[str, Any], root: Path = ROOT) -> bool:
    """Whether a row of ``faults.json`` is of other code than there is now, or of code that nobody knows."""
    return row["commit"] == UNKNOWN or row["code"] != code_digest(row["covers"], root)
