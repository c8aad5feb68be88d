"""Files and directories that only their owner can read, whatever the umask allows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["DIR_MODE", "FILE_MODE", "create_private", "make_private_dir", "private"]

DIR_MODE = 0o700
FILE_MODE = 0o600


def make_private_dir(directory: Path) -> None:
    """Create the directory, and missing ones above it. One that exists keeps its mode: somebody may have chosen it."""
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(DIR_MODE, exist_ok=True)


def create_private(path: Path) -> None:
    """Create the file unless it exists, for a library that would create it with a mode of its own. Where that fails, so
    does the library, which says more.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def private(path: str, flags: int) -> int:
    """An opener for ``open``."""
    return os.open(path, flags, FILE_MODE)
