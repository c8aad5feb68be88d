"""What a field of an event can hold.

    Plain      text, a whole number (64 bits), a float, a truth value, a time, a date, bytes
    Digits     an exact decimal number, with as many digits as are declared
    Choice     one of an enum's values
    Many       a list
    Named      a map from text
    Record     fields of its own

A kind says nothing of Spark, JSON or SQLite; each of them has its own translation.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Choice", "Digits", "Field", "Kind", "Many", "Named", "Plain", "Record"]

PlainName = Literal["text", "int", "float", "bool", "time", "date", "bytes"]


@dataclass(frozen=True, slots=True)
class Plain:
    name: PlainName


@dataclass(frozen=True, slots=True)
class Digits:
    """``Annotated[Decimal, Digits(20, 4)]``: at most so many digits, so many of them behind the point."""

    precision: int = 18
    scale: int = 6


@dataclass(frozen=True, slots=True)
class Choice:
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Many:
    of: Kind
    optional: bool = False
    """Whether an element may be null."""


@dataclass(frozen=True, slots=True)
class Named:
    of: Kind
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    optional: bool
    """Whether it may be null or absent, which are one: either way the event is read with the default."""
    # Not in the hash: it may be a list.
    default: Any = field(default=None, hash=False)
    """What an event that was written before the field existed is read with."""

    @property
    def may_be_none(self) -> bool:
        """None of a field with another default would be read back as that default; so it is not written."""
        return self.optional and self.default is None

    def fresh_default(self) -> Any:
        """A list or a map is the reader's own, to change as it likes."""
        return copy.deepcopy(self.default) if isinstance(self.default, (list, dict)) else self.default


@dataclass(frozen=True, slots=True)
class Record:
    fields: tuple[Field, ...]


Kind = Plain | Digits | Choice | Many | Named | Record
