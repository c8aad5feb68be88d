"""Encodes Python values in the log's JSON format, for bodies, keys and filters. It never rounds a value."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from headrace.model.codec.json_text import describe_python
from headrace.model.codec.scalar_text import bytes_text, date_text, digits_text, time_text
from headrace.model.errors import ValueDoesNotFit

__all__ = ["body_of", "key_text", "literal", "to_json_value"]

_encode = msgspec.json.Encoder().encode


def to_json_value(value: Any) -> Any:
    """Convert a value so that ``msgspec.json`` encodes it correctly. Raise ValueDoesNotFit if that is impossible."""
    match value:
        case enum.Enum():
            return to_json_value(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Decimal():
            if not value.is_finite():
                raise ValueDoesNotFit(f"{value} is not a decimal number")
            return msgspec.Raw(digits_text(value).encode())
        case datetime():
            if value.utcoffset() is None:
                raise ValueDoesNotFit(
                    f"the time {value.isoformat()} has no UTC offset: add one, as datetime.now(UTC) does"
                )
            return time_text(value)
        case date():
            return date_text(value)
        case bytes() | bytearray() | memoryview():
            return bytes_text(bytes(value))
        case Mapping():
            return {_name(name): _inside(member, str(name)) for name, member in value.items()}
        case list() | tuple():
            return [_inside(item, f"[{number}]") for number, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _inside(getattr(value, field.name), field.name) for field in fields}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        # A NumPy scalar, such as a single value of a data frame.
        return to_json_value(value.item())
    raise ValueDoesNotFit(f"{describe_python(value)} cannot be written to the log")


def body_of(value: Any) -> bytes:
    """Encode a value. The same value has the same bytes, so that the server recognizes a repeated request."""
    try:
        return _encode(to_json_value(value))
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise ValueDoesNotFit(f"the value cannot be encoded as JSON: {error}") from None


def key_text(key: Any) -> str:
    """Encode a key: a single field as its text, several fields as a JSON object."""
    json_value = to_json_value(key)
    return json_value if isinstance(json_value, str) else _encode(json_value).decode()


def literal(value: Any) -> str:
    """Encode a value as a literal of the filter language."""
    return _encode(to_json_value(value)).decode()


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueDoesNotFit(f"the names of fields must be str, not {describe_python(name)}")
    return name


def _inside(value: Any, path: str) -> Any:
    try:
        return to_json_value(value)
    except ValueDoesNotFit as error:
        raise error.inside(path) from None
