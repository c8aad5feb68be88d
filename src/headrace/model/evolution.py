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

from headrace.model.codec.strict_decode import expected
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema

__all__ = ["unreadable_reasons"]

_INT_DIGITS = 19
_DIGITS_IN_INT = 18


def unreadable_reasons(old: Schema, new: Schema) -> list[str]:
    """Return the reasons why events written with ``old`` cannot be read with ``new``; empty if they can be read."""
    return _fields(old.fields, new.fields, "")


def _fields(old: tuple[Field, ...], new: tuple[Field, ...], path_prefix: str) -> list[str]:
    old_fields_by_name = {field.name: field for field in old}
    reasons = []
    for field in new:
        path = f"{path_prefix}{field.name}"
        old_field = old_fields_by_name.get(field.name)
        if old_field is None:
            if not field.optional:
                reasons.append(f"{path} is new and required, but old events do not have it: add a default")
            continue
        if old_field.optional and not field.optional:
            reasons.append(f"{path} is required now, but old events might not have it")
        reasons += _kind(old_field.kind, field.kind, path)
    return reasons


def _kind(old: Kind, new: Kind, path: str) -> list[str]:
    match old, new:
        case Record(old_fields), Record(new_fields):
            return _fields(old_fields, new_fields, f"{path}.")
        case (List(old_element, old_optional), List(element, optional)) | (
            Map(old_element, old_optional),
            Map(element, optional),
        ):
            reasons = _kind(old_element, element, f"{path}[]")
            if old_optional and not optional:
                reasons.append(f"{path}[] does not allow null now, but old events might have null there")
            return reasons
        case Enum(old_values), Enum(values):
            removed = [value for value in old_values if value not in values]
            return (
                [f"{path} no longer allows {', '.join(map(repr, removed))}, but old events might have it"]
                if removed
                else []
            )
        case Digits(old_precision, old_scale), Digits(precision, scale):
            if scale >= old_scale and precision - scale >= old_precision - old_scale:
                return []
        case Scalar("int"), Digits(precision, scale):
            if precision - scale >= _INT_DIGITS:
                return []
        case Digits(precision, 0), Scalar("int"):
            if precision <= _DIGITS_IN_INT:
                return []
        case Enum(), Scalar("text"):
            return []
        case _:
            if old == new:
                return []
    return [f"{path} was {expected(old)} and is now {expected(new)}"]
