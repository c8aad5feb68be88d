"""Faults that a test sets up beforehand, and the record of what was done to the files."""

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
"""The operations that change what is, or what would be, on the disk; the others only look."""

Stage = Literal["before", "during", "after"]


class Crash(BaseException):
    """The process ends here. Not an ``Exception``: code under test must not be able to take it for an error."""


@dataclass(frozen=True, slots=True)
class Operation:
    number: int
    """Counts the operations that change something, from 1; an operation that only looks has the next one's number."""
    kind: str
    path: Path
    target: Path | None = None
    offset: int = 0
    size: int = 0


@dataclass
class Fault:
    """Strikes operations of a kind and path, from the ``nth`` that matches on, ``times`` times (None: for ever)."""

    action: Literal["fail", "short", "forget", "crash before", "crash after"]
    kind: str | None = None
    path: str = "*"
    nth: int = 1
    times: int | None = 1
    error: int = errno.EIO
    taken: int | None = None
    hits: int = field(default=0, init=False)
    matches: int = field(default=0, init=False)

    def strikes(self, operation: Operation) -> bool:
        if not self._fits(operation):
            return False
        self.matches += 1
        late = self.matches - self.nth
        if late < 0 or (self.times is not None and late >= self.times):
            return False
        self.hits += 1
        return True

    def _fits(self, operation: Operation) -> bool:
        if operation.kind not in CHANGES if self.kind is None else operation.kind != self.kind:
            return False
        paths = (operation.path, operation.target)
        return any(path is not None and fnmatchcase(path.as_posix(), self.path) for path in paths)

    def as_error(self, operation: Operation) -> OSError:
        return OSError(self.error, os.strerror(self.error), str(operation.path))
