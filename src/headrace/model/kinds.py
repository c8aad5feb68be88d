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

from dataclasses import dataclass
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
    """Whether it may be null or absent."""
    default: Any = None
    """What an event that was written before the field existed is read with."""


@dataclass(frozen=True, slots=True)
class Record:
    fields: tuple[Field, ...]


Kind = Plain | Digits | Choice | Many | Named | Record
