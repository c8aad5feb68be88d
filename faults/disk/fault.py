"""Faults that a test injects into file operations, and the record of an operation."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

__all__ = ["CHANGES", "Crash", "Fault", "Operation", "Stage"]

CHANGES = frozenset(
    {"create", "write", "truncate", "sync", "make_dir", "rename", "remove", "remove_dir", "sync_dir", "lock"}
)
"""The operations that change the disk; all others only read."""

Stage = Literal["before", "during", "after"]


class Crash(BaseException):
    """Simulates the end of the process. Not an ``Exception``, so that the code under test does not handle it."""


@dataclass(frozen=True, slots=True)
class Operation:
    number: int
    """Counts the operations that change the disk, from 1. A read has the number of the next such operation."""
    kind: str
    path: Path
    target: Path | None = None
    offset: int = 0
    size: int = 0


@dataclass
class Fault:
    """Affects matching operations of a kind and path, from the ``nth`` on.

    It affects ``times`` operations in total, or all of them if ``times`` is None.
    """

    action: Literal["fail", "short", "forget", "crash before", "crash after"]
    kind: str | None = None
    path: str = "*"
    nth: int = 1
    times: int | None = 1
    error: int = errno.EIO
    written_bytes: int | None = None
    hits: int = field(default=0, init=False)
    matches: int = field(default=0, init=False)

    def applies_to(self, operation: Operation) -> bool:
        if not self._matches(operation):
            return False
        self.matches += 1
        late = self.matches - self.nth
        if late < 0 or (self.times is not None and late >= self.times):
            return False
        self.hits += 1
        return True

    def _matches(self, operation: Operation) -> bool:
        if operation.kind not in CHANGES if self.kind is None else operation.kind != self.kind:
            return False
        paths = (operation.path, operation.target)
        return any(path is not None and fnmatchcase(path.as_posix(), self.path) for path in paths)

    def as_error(self, operation: Operation) -> OSError:
        return OSError(self.error, os.strerror(self.error), str(operation.path))
