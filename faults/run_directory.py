"""A directory for one run, removed when the run ends."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["KEEP_VARIABLE", "run_directory"]

KEEP_VARIABLE = "HEADRACE_KEEP"
_MEMORY_FILE_SYSTEM = Path("/dev/shm")


@contextmanager
def run_directory(fault: str, seed: int, *, in_memory: bool = False) -> Iterator[Path]:
    """Create the directory. Set ``HEADRACE_KEEP`` to keep it after the run, with the data and the broker's log.

    With ``in_memory`` it is on a file system in memory, if the machine has one. A killed process leaves the same files
    there as on a disk, and runs are faster.
    """
    parent = _MEMORY_FILE_SYSTEM if in_memory and os.access(_MEMORY_FILE_SYSTEM, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=f"headrace-{fault.lower()}-{seed}-", dir=parent))
    try:
        yield path
    finally:
        if os.environ.get(KEEP_VARIABLE):
            print(f"{fault} seed {seed}: kept in {path}", flush=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
