"""A directory for one run, removed at its end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["KEEP_VARIABLE", "workplace"]

KEEP_VARIABLE = "HEADRACE_KEEP"
_MEMORY = Path("/dev/shm")


@contextmanager
def workplace(fault: str, seed: int, *, in_memory: bool = False) -> Iterator[Path]:
    """Set ``HEADRACE_KEEP`` to look at what a run left: data directory and the broker's log.

    ``in_memory`` asks for a file system without a disk behind it, where there is one: a killed process leaves the same
    there, and more kills fit into a second.
    """
    memory = _MEMORY if in_memory and os.access(_MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=f"headrace-{fault.lower()}-{seed}-", dir=memory))
    try:
        yield path
    finally:
        if os.environ.get(KEEP_VARIABLE):
            print(f"{fault} seed {seed}: kept in {path}", flush=True)
        else:
            shutil.rmtree(path, ignore_errors=True)
