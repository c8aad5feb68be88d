"""Where a JVM puts what it needs on disk while it runs: shuffles, and the native libraries that it unpacks.

A folder of its own for each process, in the data directory. One that is killed leaves its folder; the next start
removes those whose process is gone, so that kills do not fill the disk.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from headrace.private import make_private_dir

__all__ = ["spill_folder"]

_PREFIX = "tmp-"


def spill_folder(parent: Path) -> Path:
    for left in parent.glob(f"{_PREFIX}*"):
        if not _is_alive(left.name.removeprefix(_PREFIX)):
            shutil.rmtree(left, ignore_errors=True)
    folder = parent / f"{_PREFIX}{os.getpid()}"
    make_private_dir(folder)
    return folder


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True
