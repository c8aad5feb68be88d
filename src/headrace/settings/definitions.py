"""The definition of every setting: dotted name, type and default, from the dataclasses of ``headrace.settings``."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from headrace.settings import Settings

__all__ = ["Definition", "definitions", "nearest"]


@dataclass(frozen=True, slots=True)
class Definition:
    key: str
    type: Any
    default: Any

    @property
    def is_table(self) -> bool:
        """Whether the setting is a table: the user chooses the names, and the values are strings."""
        return get_origin(self.type) is Mapping

    @property
    def is_path(self) -> bool:
        return self.type is Path or Path in get_args(self.type)

    @property
    def variable(self) -> str:
        return "HEADRACE_" + self.key.replace(".", "__").upper()

    def type_text(self) -> str:
        """The type in words, e.g. "a whole number, at least 1"."""
        return _type_text(self.type)


@cache
def definitions() -> dict[str, Definition]:
    """All settings by dotted name, e.g. ``flow.max_rows``."""
    return {definition.key: definition for definition in _fields(Settings, Settings(), "")}


def _fields(cls: type, defaults: Any, prefix: str) -> Iterator[Definition]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        value, kind = getattr(defaults, field.name), hints[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _fields(kind, value, f"{field.name}.")
        else:
            yield Definition(prefix + field.name, kind, value)


def nearest(key: str) -> str | None:
    """Return the setting with the most similar name. If no whole name is similar, compare only the part after the dot,
    because the setting can be in another section.
    """
    matches = difflib.get_close_matches(key, definitions(), n=1, cutoff=0.75)
    if matches:
        return matches[0]
    by_last_part = {name.rpartition(".")[2]: name for name in definitions()}
    matches = difflib.get_close_matches(key.rpartition(".")[2], by_last_part, n=1, cutoff=0.75)
    return by_last_part[matches[0]] if matches else None


def _type_text(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        base, *metas = get_args(kind)
        bounds = [meta for meta in metas if isinstance(meta, msgspec.Meta)]
        minimum = next((meta.ge for meta in bounds if meta.ge is not None), None)
        maximum = next((meta.le for meta in bounds if meta.le is not None), None)
        return (
            _type_text(base)
            + ("" if minimum is None else f", at least {minimum}")
            + ("" if maximum is None else f", at most {maximum}")
        )
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is Mapping:
        return "a table of names and strings"
    alternatives = [member for member in get_args(kind) if member is not NoneType]
    if alternatives:
        return " or ".join(map(_type_text, alternatives))
    return {bool: "true or false", int: "a whole number", Path: "a path"}.get(
        kind, "a string that is not empty"
    )
