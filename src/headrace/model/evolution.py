"""Whether events that were written with one schema can be read with another: without a failure, and unaltered.

Allowed is what reads every old event as it was meant:

- new fields that are optional, fields that are gone (they are ignored), another order, another default;
- a required field that becomes optional;
- an enum with more values; an enum that becomes text;
- an exact number with room for more digits on both sides of the point;
- int to an exact number with room for 19 digits; an exact number of up to 18 digits without a point to int.

Not allowed is int to float: beyond 2**53 it would read other numbers than were written, and nobody would be told.
A field with another name is one that is gone and one that is new.
"""

from __future__ import annotations

from headrace.model.fitting import expected
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.schema import Schema

__all__ = ["readable"]

_INT_DIGITS = 19
_DIGITS_IN_INT = 18


def readable(old: Schema, new: Schema) -> list[str]:
    """Why events written with ``old`` cannot be read with ``new``, one line for each reason; empty if they can."""
    return _fields(old.fields, new.fields, "")


def _fields(old: tuple[Field, ...], new: tuple[Field, ...], inside: str) -> list[str]:
    before = {field.name: field for field in old}
    reasons = []
    for field in new:
        path = f"{inside}{field.name}"
        was = before.get(field.name)
        if was is None:
            if not field.optional:
                reasons.append(
                    f"{path} is new and must be there, and old events have none: give it a default"
                )
            continue
        if was.optional and not field.optional:
            reasons.append(f"{path} must be there now, and old events may have none")
        reasons += _kind(was.kind, field.kind, path)
    return reasons


def _kind(old: Kind, new: Kind, path: str) -> list[str]:
    match old, new:
        case Record(before), Record(after):
            return _fields(before, after, f"{path}.")
        case (Many(before_of, before_optional), Many(of, optional)) | (
            Named(before_of, before_optional),
            Named(of, optional),
        ):
            reasons = _kind(before_of, of, f"{path}[]")
            if before_optional and not optional:
                reasons.append(f"{path}[] may not be null now, and old events may have nulls in it")
            return reasons
        case Choice(before_values), Choice(values):
            gone = [value for value in before_values if value not in values]
            return (
                [f"{path} may no longer be {', '.join(map(repr, gone))}, as old events may have it"]
                if gone
                else []
            )
        case Digits(before_precision, before_scale), Digits(precision, scale):
            if scale >= before_scale and precision - scale >= before_precision - before_scale:
                return []
        case Plain("int"), Digits(precision, scale):
            if precision - scale >= _INT_DIGITS:
                return []
        case Digits(precision, 0), Plain("int"):
            if precision <= _DIGITS_IN_INT:
                return []
        case Choice(), Plain("text"):
            return []
        case _:
            if old == new:
                return []
    return [f"{path} was {expected(old)}, and is {expected(new)} now"]
