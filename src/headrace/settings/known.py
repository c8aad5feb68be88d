"""Every setting there is, by its dotted name, with the type that its value must have."""

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

__all__ = ["Known", "known", "nearest"]


@dataclass(frozen=True, slots=True)
class Known:
    key: str
    type: Any
    default: Any

    @property
    def is_table(self) -> bool:
        """Names of the user's choosing, each with a text."""
        return get_origin(self.type) is Mapping

    @property
    def is_path(self) -> bool:
        return self.type is Path or Path in get_args(self.type)

    @property
    def variable(self) -> str:
        return "HEADRACE_" + self.key.replace(".", "__").upper()

    def wanted(self) -> str:
        """What its value must be, in words."""
        return _in_words(self.type)


@cache
def known() -> dict[str, Known]:
    return {one.key: one for one in _fields(Settings, Settings(), "")}


def _fields(of: type, defaults: Any, prefix: str) -> Iterator[Known]:
    hints = get_type_hints(of, include_extras=True)
    for field in dataclasses.fields(of):
        value, kind = getattr(defaults, field.name), hints[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _fields(kind, value, f"{field.name}.")
        else:
            yield Known(prefix + field.name, kind, value)


def nearest(key: str) -> str | None:
    """The setting that was probably meant: by the whole name, or by its last part in another section."""
    found = difflib.get_close_matches(key, known(), n=1, cutoff=0.75)
    if found:
        return found[0]
    last = {one.rpartition(".")[2]: one for one in known()}
    found = difflib.get_close_matches(key.rpartition(".")[2], last, n=1, cutoff=0.75)
    return last[found[0]] if found else None


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        base, *metas = get_args(kind)
        least = next(
            (meta.ge for meta in metas if isinstance(meta, msgspec.Meta) and meta.ge is not None), None
        )
        most = next(
            (meta.le for meta in metas if isinstance(meta, msgspec.Meta) and meta.le is not None), None
        )
        bounds = ("" if least is None else f", at least {least}") + (
            "" if most is None else f", at most {most}"
        )
        return _in_words(base) + bounds
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is Mapping:
        return "a table of names and texts"
    others = [one for one in get_args(kind) if one is not NoneType]
    if others:
        return " or ".join(map(_in_words, others))
    return {bool: "true or false", int: "a whole number", Path: "a path"}.get(
        kind, "a text that is not empty"
    )
