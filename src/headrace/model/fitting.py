"""Parsed JSON to the Python value that its kind asks for, or the reason why there is none.

This is the rule for what a value may be, written to be read; ``headrace.model.quick`` takes the common case faster and
never differs. An optional field that is null or absent has its default: in JSON, as in Spark, the two are one.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from headrace.model.errors import ValueDoesNotFit
from headrace.model.json_text import NumberText, found, step
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.texts import bytes_from, date_from, digits_from, exactly, time_from

__all__ = ["FLOAT_NAMES", "INT_MAX", "INT_MIN", "expected", "fit", "fit_fields"]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
FLOAT_NAMES = ("NaN", "Infinity", "-Infinity")
_INT_CHARS_MAX = 20
_SHOWN_CHOICES_MAX = 8

_EXPECTED = {
    "text": "text",
    "int": "a whole number of 64 bits",
    "float": 'a number, "NaN", "Infinity" or "-Infinity"',
    "bool": "true or false",
    "time": "a time with its offset, as 2026-01-31T12:00:00Z",
    "date": "a date, as 2026-01-31",
    "bytes": "bytes in base64",
}


def expected(kind: Kind) -> str:
    """What a value of the kind must be, in words."""
    match kind:
        case Plain(name):
            return _EXPECTED[name]
        case Digits(precision, scale):
            return f"an exact number with up to {precision - scale} digits before the point and {scale} behind it"
        case Choice(values):
            shown = ", ".join(map(ascii, values[:_SHOWN_CHOICES_MAX]))
            more = len(values) - _SHOWN_CHOICES_MAX
            return f"one of {shown}" + (f" and {more} more" if more > 0 else "")
        case Many():
            return "a list"
        case Named() | Record():
            return "an object"


def fit(kind: Kind, value: Any) -> Any:
    """``value`` is what ``json_text.parse`` made."""
    match kind:
        case Plain() | Digits() | Choice():
            try:
                return _single(kind, value)
            except (ValueError, ArithmeticError):
                raise _unfit(kind, value) from None
        case Many(of, optional):
            if not isinstance(value, list):
                raise _unfit(kind, value)
            return [_part(of, optional, one, f"[{number}]") for number, one in enumerate(value)]
        case Named(of, optional):
            if not isinstance(value, dict):
                raise _unfit(kind, value)
            return {name: _part(of, optional, one, step(name)) for name, one in value.items()}
        case Record(fields):
            return fit_fields(fields, value)


def fit_fields(fields: tuple[Field, ...], value: Any) -> dict[str, Any]:
    """In the order of the schema; what the schema does not know is left out."""
    if not isinstance(value, dict):
        raise ValueDoesNotFit(f"expected an object, found {found(value)}")
    made = {}
    for field in fields:
        given = value.get(field.name)
        if given is not None:
            made[field.name] = _part(field.kind, False, given, field.name)
        elif field.optional:
            made[field.name] = field.fresh_default()
        elif field.name in value:
            raise _unfit(field.kind, None).inside(field.name)
        else:
            raise ValueDoesNotFit(f"missing, and it must be there ({expected(field.kind)})", path=field.name)
    return made


def _part(kind: Kind, optional: bool, value: Any, at: str) -> Any:
    if value is None and optional:
        return None
    try:
        return fit(kind, value)
    except ValueDoesNotFit as error:
        raise error.inside(at) from None


def _single(kind: Plain | Digits | Choice, value: Any) -> Any:
    """Raises ValueError or ArithmeticError for what is none."""
    if isinstance(kind, Digits):
        # Also as text, since JavaScript cannot write an exact number otherwise.
        return exactly(kind)(digits_from(value if isinstance(value, NumberText) else _text(value)))
    if isinstance(kind, Choice):
        return _text(value) if value in kind.values else _no(value)
    match kind.name:
        case "text":
            return _text(value)
        case "int":
            return _int(value)
        case "float":
            return _float(value)
        case "bool":
            return value if isinstance(value, bool) else _no(value)
        case "time":
            return time_from(_text(value))
        case "date":
            return date_from(_text(value))
        case "bytes":
            return bytes_from(_text(value))


def _text(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, NumberText):
        _no(value)
    return str(value)


def _int(value: Any) -> int:
    if type(value) is not NumberText or len(value) > _INT_CHARS_MAX:
        _no(value)
    number = int(value)
    return number if INT_MIN <= number <= INT_MAX else _no(value)


def _float(value: Any) -> float:
    if isinstance(value, NumberText):
        number = float(value)
        return number if math.isfinite(number) else _no(value)
    return float(value) if value in FLOAT_NAMES else _no(value)


def _no(value: Any) -> NoReturn:
    raise ValueError(value)


def _unfit(kind: Kind, value: Any) -> ValueDoesNotFit:
    return ValueDoesNotFit(f"expected {expected(kind)}, found {found(value)}")
