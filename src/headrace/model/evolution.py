"""Checks that events written with one schema can be read with another schema: no event fails, and no value changes.

Allowed changes:

- new optional fields, removed fields (readers ignore them), another order of fields, another default;
- a required field that becomes optional;
- an enum with more values; an enum that becomes text;
- an exact number with more digits before or after the point;
- int to an exact number with at least 19 digits before the point;
- an exact number of up to 18 digits without decimal places to int.

int to float is not allowed, because integers above 2**53 would silently change. Renaming a field counts as removing the
old field and adding the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from headrace.model.codec.strict_decode import expected
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema

__all__ = ["Incompatibility", "incompatibilities", "is_same_value", "unreadable_reasons"]

_INT_DIGITS = 19
_DIGITS_IN_INT = 18


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """A change of a field after which older events may not be readable."""

    path: str
    """The field, such as ``items[].price``."""
    change: Literal["added", "required", "enum", "kind"]
    reason: str


def unreadable_reasons(old: Schema, new: Schema) -> list[str]:
    """Return the reasons why events written with ``old`` cannot be read with ``new``; empty if they can be read."""
    return [found.reason for found in incompatibilities(old, new)]


def incompatibilities(old: Schema, new: Schema) -> list[Incompatibility]:
    """Return the changes after which events written with ``old`` cannot be read with ``new``."""
    return [*_fields(old.fields, new.fields, "")]


def is_same_value(old: Any, new: Any) -> bool:
    """Whether a value decoded with the new schema is the value decoded with the old schema. Only fields of both are
    compared; a missing old value may have any default.
    """
    match old, new:
        case None, _:
            return True
        case dict(), dict():
            return all(is_same_value(value, new[name]) for name, value in old.items() if name in new)
        case list(), list():
            return len(old) == len(new) and all(map(is_same_value, old, new))
    return bool(old == new or (old != old and new != new))


def _fields(old: tuple[Field, ...], new: tuple[Field, ...], path_prefix: str) -> Iterator[Incompatibility]:
    old_fields_by_name = {field.name: field for field in old}
    for field in new:
        path = f"{path_prefix}{field.name}"
        old_field = old_fields_by_name.get(field.name)
        if old_field is None:
            if not field.optional:
                yield Incompatibility(
                    path, "added", f"{path} is new and required, but old events do not have it: add a default"
                )
            continue
        if old_field.optional and not field.optional:
            yield Incompatibility(
                path, "required", f"{path} is required now, but old events might not have it"
            )
        yield from _kind(old_field.kind, field.kind, path)


def _kind(old: Kind, new: Kind, path: str) -> Iterator[Incompatibility]:
    match old, new:
        case Record(old_fields), Record(new_fields):
            yield from _fields(old_fields, new_fields, f"{path}.")
        case (List(old_element, old_optional), List(element, optional)) | (
            Map(old_element, old_optional),
            Map(element, optional),
        ):
            yield from _kind(old_element, element, f"{path}[]")
            if old_optional and not optional:
                reason = f"{path}[] does not allow null now, but old events might have null there"
                yield Incompatibility(f"{path}[]", "required", reason)
        case Enum(old_values), Enum(values):
            removed = ", ".join(repr(value) for value in old_values if value not in values)
            if removed:
                reason = f"{path} no longer allows {removed}, but old events might have it"
                yield Incompatibility(path, "enum", reason)
        case _:
            if not _includes(new, old):
                reason = f"{path} was {expected(old)} and is now {expected(new)}"
                yield Incompatibility(path, "kind", reason)


def _includes(new: Kind, old: Kind) -> bool:
    """Whether ``new``, which is not nested, has every value of ``old``."""
    match old, new:
        case Digits(old_precision, old_scale), Digits(precision, scale):
            return scale >= old_scale and precision - scale >= old_precision - old_scale
        case Scalar("int"), Digits(precision, scale):
            return precision - scale >= _INT_DIGITS
        case Digits(precision, 0), Scalar("int"):
            return precision <= _DIGITS_IN_INT
        case Enum(), Scalar("text"):
            return True
    return old == new
