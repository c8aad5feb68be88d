"""A parameter of a request: its type, for reading it and for the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from headrace.serve.errors import RequestUnfit

__all__ = ["Parameter", "choice", "duration", "integer", "text", "truth"]

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_INTEGER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    about: str
    schema: dict[str, Any]
    read: Callable[[str], Any]
    """Raises ValueError, with what it must be."""
    where: Literal["query", "path", "header"] = "query"
    example: Any = None

    def value(self, given: str) -> Any:
        try:
            return self.read(given)
        except ValueError as error:
            raise RequestUnfit(f"{self.name} must be {error}") from None


def text(
    name: str,
    about: str,
    *,
    chars_max: int = 4_000,
    where: Literal["query", "path", "header"] = "query",
    example: str | None = None,
) -> Parameter:
    def read(given: str) -> str:
        if len(given) > chars_max:
            raise ValueError(f"a text of at most {chars_max} characters")
        return given

    return Parameter(name, about, {"type": "string", "maxLength": chars_max}, read, where, example)


def integer(name: str, about: str, least: int, most: int, default: int | None = None) -> Parameter:
    def read(given: str) -> int:
        if _INTEGER.fullmatch(given) is None or not least <= int(given) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(given)

    schema: dict[str, Any] = {"type": "integer", "minimum": least, "maximum": most}
    if default is not None:
        schema["default"] = default
    return Parameter(name, about, schema, read)


def truth(name: str, about: str) -> Parameter:
    def read(given: str) -> bool:
        if given not in ("true", "false"):
            raise ValueError("true or false")
        return given == "true"

    return Parameter(name, about, {"type": "boolean", "default": False}, read)


def choice(name: str, about: str, values: tuple[str, ...]) -> Parameter:
    def read(given: str) -> str:
        if given not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return given

    return Parameter(name, about, {"type": "string", "enum": list(values)}, read)


def duration(name: str, about: str) -> Parameter:
    """Seconds, as in ``2s``, ``500ms`` or ``1m``."""

    def read(given: str) -> float:
        found = _DURATION.fullmatch(given)
        if found is None:
            raise ValueError("a time, as 2s, 500ms or 1m")
        return float(found[1]) * _UNITS[found[2]]

    return Parameter(name, about, {"type": "string", "pattern": f"^{_DURATION.pattern}$"}, read, example="2s")
