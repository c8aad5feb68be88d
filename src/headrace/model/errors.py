"""Mistakes in an app, found before anything starts and shown where they were made; and values that do not fit.

HeadraceError
├── AppError            one mistake, with the user's file and line           (HR-APP-…)
│   └── SchemaError     a type or a field that events cannot have
├── AppMistakes         all mistakes of an app at once
└── ValueDoesNotFit     a value that its topic's schema does not allow       (HR-VALUE-…)
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.model.place import Place

__all__ = ["AppError", "AppMistakes", "SchemaError", "ValueDoesNotFit"]


class AppError(HeadraceError):
    code = "HR-APP-INVALID"

    def __init__(
        self, message: str, *, place: Place | None, detail: str = "", hint: str = "", code: str = ""
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.place = place
        if code:
            self.code = code

    def facts(self) -> dict[str, object]:
        place = {"file": self.place.file, "line": self.place.line} if self.place else {}
        return {**super().facts(), **place}

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

    def facts(self) -> dict[str, object]:
        return {**super().facts(), "mistakes": [one.facts() for one in self.mistakes]}

    def __str__(self) -> str:
        return "\n".join([*map(str, self.mistakes), super().__str__()])


class ValueDoesNotFit(HeadraceError):
    """``path`` leads to the part that does not fit, as in ``items[2].price``; it is empty for the value as a whole."""

    code = "HR-VALUE-UNFIT"

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{path or 'the value'}: {reason}")
        self.reason = reason
        self.path = path

    def inside(self, step: str) -> ValueDoesNotFit:
        """The same, seen from one level further out."""
        between = "." if self.path and not self.path.startswith("[") else ""
        return ValueDoesNotFit(self.reason, path=f"{step}{between}{self.path}")
