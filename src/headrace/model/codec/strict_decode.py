"""Strict decoding: converts parsed JSON to the Python value of a kind, or raises ``ValueDoesNotFit`` with the reason.

This module defines which values are valid. ``fast_decode`` decodes common values faster, with the same result. An
optional field that is null or absent gets its default: null and absent mean the same, as in Spark.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from headrace.model.codec.json_text import NumberText, describe_json, key_step
from headrace.model.codec.scalar_text import bytes_from, date_from, digits_from, quantizer, time_from
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar

__all__ = ["FLOAT_NAMES", "INT_MAX", "INT_MIN", "expected", "fit", "fit_fields", "misfits"]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
FLOAT_NAMES = ("NaN", "Infinity", "-Infinity")
_INT_CHARS_MAX = 20
_SHOWN_CHOICES_MAX = 8

_EXPECTED = {
    "text": "text",
    "int": "a 64-bit integer",
    "float": 'a number, "NaN", "Infinity" or "-Infinity"',
    "bool": "true or false",
    "time": "a time with a UTC offset, e.g. 2026-01-31T12:00:00Z",
    "date": "a date, e.g. 2026-01-31",
    "bytes": "bytes in base64",
}


def expected(kind: Kind) -> str:
    """Describe the values of a kind for an error message."""
    match kind:
        case Scalar(name):
            return _EXPECTED[name]
        case Digits(precision, scale):
            return (
                f"an exact number with up to {precision - scale} digits before the point and {scale} after it"
            )
        case Enum(values):
            first_values = ", ".join(map(ascii, values[:_SHOWN_CHOICES_MAX]))
            other_values = len(values) - _SHOWN_CHOICES_MAX
            return f"one of {first_values}" + (f" and {other_values} more" if other_values > 0 else "")
        case List():
            return "a list"
        case Map() | Record():
            return "an object"


def fit(kind: Kind, value: Any) -> Any:
    """``value`` is a result of ``json_text.parse``."""
    match kind:
        case Scalar() | Digits() | Enum():
            try:
                return _single(kind, value)
            except (ValueError, ArithmeticError):
                raise _unfit(kind, value) from None
        case List(of, optional):
            if not isinstance(value, list):
                raise _unfit(kind, value)
            return [_part(of, optional, element, f"[{number}]") for number, element in enumerate(value)]
        case Map(of, optional):
            if not isinstance(value, dict):
                raise _unfit(kind, value)
            return {name: _part(of, optional, element, key_step(name)) for name, element in value.items()}
        case Record(fields):
            return fit_fields(fields, value)


def fit_fields(fields: tuple[Field, ...], value: Any) -> dict[str, Any]:
    """Return the fields in the order of the schema, without fields that the schema does not have."""
    if not isinstance(value, dict):
        raise ValueDoesNotFit(f"expected an object, found {describe_json(value)}")
    row = {}
    for field in fields:
        part = value.get(field.name)
        if part is not None:
            row[field.name] = _part(field.kind, False, part, field.name)
        elif field.optional:
            row[field.name] = field.fresh_default()
        elif field.name in value:
            raise _unfit(field.kind, None).inside(field.name)
        else:
            raise ValueDoesNotFit(
                f"the required field is missing (expected {expected(field.kind)})", path=field.name
            )
    return row


def misfits(fields: tuple[Field, ...], value: Any) -> list[ValueDoesNotFit]:
    """Return the error of each field that does not fit. ``fit_fields`` raises only the first."""
    if not isinstance(value, dict):
        return [ValueDoesNotFit(f"expected an object, found {describe_json(value)}")]
    errors = []
    for field in fields:
        try:
            fit_fields((field,), value)
        except ValueDoesNotFit as error:
            errors.append(error)
    return errors


def _part(kind: Kind, optional: bool, value: Any, path_step: str) -> Any:
    if value is None and optional:
        return None
    try:
        return fit(kind, value)
    except ValueDoesNotFit as error:
        raise error.inside(path_step) from None


def _single(kind: Scalar | Digits | Enum, value: Any) -> Any:
    """Raises ValueError or ArithmeticError if the value is not of the kind."""
    if isinstance(kind, Digits):
        # Accept text as well: JavaScript has no other way to write an exact number.
        return quantizer(kind)(digits_from(value if isinstance(value, NumberText) else _text(value)))
    if isinstance(kind, Enum):
        return _text(value) if value in kind.values else _reject(value)
    match kind.name:
        case "text":
            return _text(value)
        case "int":
            return _int(value)
        case "float":
            return _float(value)
        case "bool":
            return value if isinstance(value, bool) else _reject(value)
        case "time":
            return time_from(_text(value))
        case "date":
            return date_from(_text(value))
        case "bytes":
            return bytes_from(_text(value))


def _text(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, NumberText):
        _reject(value)
    return str(value)


def _int(value: Any) -> int:
    if type(value) is not NumberText or len(value) > _INT_CHARS_MAX:
        _reject(value)
    number = int(value)
    return number if INT_MIN <= number <= INT_MAX else _reject(value)


def _float(value: Any) -> float:
    if isinstance(value, NumberText):
        number = float(value)
        return number if math.isfinite(number) else _reject(value)
    return float(value) if value in FLOAT_NAMES else _reject(value)


def _reject(value: Any) -> NoReturn:
    raise ValueError(value)


def _unfit(kind: Kind, value: Any) -> ValueDoesNotFit:
    return ValueDoesNotFit(f"expected {expected(kind)}, found {describe_json(value)}")
