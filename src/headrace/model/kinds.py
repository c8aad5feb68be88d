"""The kinds of values that a field of an event can have.

    Scalar     text, a whole number (64 bits), a float, a boolean, a time, a date, bytes
    Digits     an exact decimal number with a declared number of digits
    Enum       one of an enum's values
    List       a list
    Map        a map with text keys
    Record     nested fields

A kind does not depend on Spark, JSON or a store. The code for each of these translates kinds to its types.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Digits", "Enum", "Field", "Kind", "List", "Map", "Record", "Scalar"]

ScalarName = Literal["text", "int", "float", "bool", "time", "date", "bytes"]


@dataclass(frozen=True, slots=True)
class Scalar:
    name: ScalarName


@dataclass(frozen=True, slots=True)
class Digits:
    """``Annotated[Decimal, Digits(20, 4)]``: at most 20 digits, 4 of them after the point."""

    precision: int = 18
    scale: int = 6


@dataclass(frozen=True, slots=True)
class Enum:
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class List:
    of: Kind
    optional: bool = False
    """Whether an element may be null."""


@dataclass(frozen=True, slots=True)
class Map:
    of: Kind
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    optional: bool
    """Whether the field may be null or absent. Both mean the same: the reader gets the default."""
    # Not in the hash, because a default can be a list.
    default: Any = field(default=None, hash=False)
    """The value for events that were written before the field existed."""

    @property
    def may_be_none(self) -> bool:
        """Whether None can be written. If the default is not None, a null would be read as the default."""
        return self.optional and self.default is None

    def fresh_default(self) -> Any:
        """Return a copy of the default, which the caller may change."""
        return copy.deepcopy(self.default) if isinstance(self.default, (list, dict)) else self.default


@dataclass(frozen=True, slots=True)
class Record:
    fields: tuple[Field, ...]


Kind = Scalar | Digits | Enum | List | Map | Record
