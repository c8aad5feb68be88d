"""Counts the files of the package that one operation runs, by tracing Python's function calls."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .tracked import ROOT

__all__ = ["documented_files", "trace_files"]

_PACKAGE = str(ROOT / "src" / "headrace") + "/"


def documented_files(name: str) -> list[str]:
    """Return the files of a walk in docs/ARCHITECTURE.md, in its order."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    walk = text.partition(f"<!-- begin {name} -->")[2].partition(f"<!-- end {name} -->")[0]
    return re.findall(r"(?m)^\d+\. `([\w/]+\.py)`", walk)


@contextmanager
def trace_files() -> Iterator[set[str]]:
    """Yield the set of files below ``src/headrace`` whose functions run in the block or in threads that start in it."""
    files: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            files.add(frame.f_code.co_filename.removeprefix(_PACKAGE))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
