"""Where in the user's own files something was declared, so that a mistake can be shown there."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Place", "caller", "place_of"]

# With the separator: a user's ``headrace_shop.py`` beside this package is not ours.
_OWN = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def caller() -> Place:
    """The nearest line outside this package that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def place_of(function: Callable[..., Any]) -> Place:
    """Its first line, decorators included; of one that wraps another, the other's."""
    code = getattr(inspect.unwrap(function), "__code__", function.__code__)
    return Place(code.co_filename, code.co_firstlineno)


def _is_ours(file: str) -> bool:
    return file.startswith((_OWN, "<"))
