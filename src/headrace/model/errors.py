"""Errors of an app's declarations, of values, and of missing libraries.

HeadraceError
├── AppError            one mistake in an app, with the user's file and line (HR-APP-…)
│   └── SchemaError     a type or a field that events cannot have
├── AppMistakes         all mistakes of an app at once
├── ValueDoesNotFit     a value that its topic's schema does not allow       (HR-VALUE-…)
└── MissingExtra        an optional library is not installed                 (HR-EXTRA-MISSING)
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError

__all__ = [
    "AppError",
    "AppMistakes",
    "CollectedMistakes",
    "MissingExtra",
    "SchemaError",
    "SourceLocation",
    "ValueDoesNotFit",
    "caller",
    "collect_mistakes",
    "location_of",
    "needing",
    "raise_or_collect",
]

# Ends with the separator, so that a user's ``headrace_shop.py`` beside this package does not match.
_PACKAGE_DIR = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line in one of the user's files."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def caller() -> SourceLocation:
    """Return the nearest line of the call stack that is outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_headrace_code(frame.f_code.co_filename):
        frame = frame.f_back
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno)


def location_of(function: Callable[..., Any]) -> SourceLocation:
    """Return the first line of a function, including decorators. For a wrapper, use the wrapped function."""
    code = getattr(inspect.unwrap(function), "__code__", function.__code__)
    return SourceLocation(code.co_filename, code.co_firstlineno)


def _is_headrace_code(file: str) -> bool:
    return file.startswith((_PACKAGE_DIR, "<"))


class AppError(HeadraceError):
    code = "HR-APP-INVALID"

    def __init__(
        self,
        message: str,
        *,
        location: SourceLocation | None,
        detail: str = "",
        hint: str = "",
        code: str = "",
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.location = location
        if code:
            self.code = code

    def facts(self) -> dict[str, object]:
        location = {"file": self.location.file, "line": self.location.line} if self.location else {}
        return {**super().facts(), **location}

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.location}: {text}" if self.location else text


class SchemaError(AppError):
    code = "HR-APP-SCHEMA"


@dataclass(frozen=True, slots=True)
class CollectedMistakes:
    mistakes: list[AppError]
    incomplete: set[SourceLocation]
    """The declarations that lack what could not be declared. Further mistakes of these are consequences."""


_collected: ContextVar[CollectedMistakes | None] = ContextVar("collected mistakes", default=None)


@contextlib.contextmanager
def collect_mistakes() -> Iterator[CollectedMistakes]:
    """Collect the mistakes that declarations would raise, so that a module can be imported to its end and checked as a
    whole. Declarations without a usable form still raise.
    """
    collected = CollectedMistakes([], set())
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)


def raise_or_collect(mistake: AppError, at: SourceLocation) -> None:
    """Raise the mistake of the declaration at ``at``, or collect it."""
    collected = _collected.get()
    if collected is None:
        raise mistake
    collected.mistakes.append(mistake)
    collected.incomplete.add(at)


class AppMistakes(HeadraceError):
    """All mistakes of an app in one error, so that the user can correct them together."""

    code = "HR-APP-MISTAKES"

    def __init__(self, mistakes: Sequence[AppError]) -> None:
        count = len(mistakes)
        super().__init__(f"the app has {count} mistake{'s' * (count != 1)}; nothing was started")
        self.mistakes = tuple(mistakes)

    def facts(self) -> dict[str, object]:
        return {**super().facts(), "mistakes": [mistake.facts() for mistake in self.mistakes]}

    def __str__(self) -> str:
        return "\n".join([*map(str, self.mistakes), super().__str__()])


class ValueDoesNotFit(HeadraceError):
    """``path`` names the part that does not fit, for example ``items[2].price``. Empty: the whole value."""

    code = "HR-VALUE-UNFIT"

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{path or 'the value'}: {reason}")
        self.reason = reason
        self.path = path

    def inside(self, step: str) -> ValueDoesNotFit:
        """Return the same error with ``step`` in front of its path."""
        separator = "." if self.path and not self.path.startswith("[") else ""
        return ValueDoesNotFit(self.reason, path=f"{step}{separator}{self.path}")


class MissingExtra(HeadraceError):
    code = "HR-EXTRA-MISSING"


@contextlib.contextmanager
def needing(extra: str, library: str) -> Iterator[None]:
    """Wrap an import. If the library is missing, raise ``MissingExtra`` with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise MissingExtra(
            f"the library {library} is required here and is not installed",
            hint=f"pip install 'headrace[{extra}]'",
        ) from error
