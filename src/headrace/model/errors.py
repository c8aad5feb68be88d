"""Mistakes in an app, found before anything starts, and shown where they were made.

AppError          one mistake, with the user's file and line     (HR-APP-…)
├── SchemaError   a type or a field that events cannot have
└── AppMistakes   all mistakes of an app at once
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.model.place import Place

__all__ = ["AppError", "AppMistakes", "SchemaError"]


class AppError(HeadraceError):
    code = "HR-APP-INVALID"

    def __init__(self, message: str, *, place: Place | None, detail: str = "", hint: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.place = place

    def __str__(self) -> str:
        told = super().__str__()
        return f"{self.place}: {told}" if self.place else told


class SchemaError(AppError):
    code = "HR-APP-SCHEMA"


class AppMistakes(HeadraceError):
    """So that a user mends all of them in one go."""

    code = "HR-APP-MISTAKES"

    def __init__(self, mistakes: Sequence[AppError]) -> None:
        count = len(mistakes)
        super().__init__(f"the app has {count} mistake{'s' * (count != 1)}; nothing was started")
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.mistakes), super().__str__()])
