"""Turns the words of a command line into values, without the validation library that Typer would load for it.

Typer hands every option to a library whose import alone takes longer than asking a broker for its topics.
We use five plain types, so they are converted here. If a later Typer no longer looks at this attribute, it
goes its own way: slower, with the same result; a test watches over that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin

import typer

__all__ = ["with_plain_values"]


class _Plain:
    """Stands where Typer keeps its converter for one parameter."""

    def __init__(self, annotation: Any, choices: tuple[str, ...] | None) -> None:
        self._many = get_origin(annotation) is list
        self._type = get_args(annotation)[0] if self._many else annotation
        self._choices = choices

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if self._many else None
        if self._many:
            return tuple(self._one(item, param, ctx) for item in value)
        return self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            if self._choices is not None:
                if value not in self._choices:
                    raise ValueError(f"{value!r} is not one of {', '.join(self._choices)}.")
                return value
            if self._type in (int, float):
                converted = self._number(value)
                if param.min is not None and converted < param.min:
                    raise ValueError(f"{value} is below {param.min}.")
                if param.max is not None and converted > param.max:
                    raise ValueError(f"{value} is above {param.max}.")
                return converted
            return Path(value) if self._type is Path else value
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _number(self, value: Any) -> int | float:
        try:
            number: int | float = self._type(value)
        except ValueError:
            kind = "a whole number" if self._type is int else "a number"
            raise ValueError(f"{value!r} is not {kind}.") from None
        return number


def with_plain_values(params: list[Any]) -> list[Any]:
    """The same parameters, each with a plain converter where we have one."""
    for param in params:
        descriptor = getattr(param, "type_descriptor", None)
        if descriptor is None:
            continue
        inner = get_args(descriptor.annotation)
        kind = inner[0] if get_origin(descriptor.annotation) is list else descriptor.annotation
        if descriptor.choices is not None or kind in (str, int, float, bool, Path):
            param._runtime_param = _Plain(descriptor.annotation, descriptor.choices)
    return params
