"""Python values as the log writes them, for bodies, keys and filters; nothing is rounded or guessed."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from headrace.model.errors import ValueDoesNotFit
from headrace.model.json_text import shown
from headrace.model.texts import bytes_text, date_text, digits_text, time_text

__all__ = ["body_of", "key_text", "literal", "plain"]

_encode = msgspec.json.Encoder().encode


def plain(value: Any) -> Any:
    """What ``msgspec.json`` writes as it must be. Raises ValueDoesNotFit."""
    match value:
        case enum.Enum():
            return plain(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Decimal():
            if not value.is_finite():
                raise ValueDoesNotFit(f"{value} is no exact number")
            return msgspec.Raw(digits_text(value).encode())
        case datetime():
            if value.utcoffset() is None:
                raise ValueDoesNotFit(
                    f"the time {value.isoformat()} has no offset: give it one, as datetime.now(UTC) does"
                )
            return time_text(value)
        case date():
            return date_text(value)
        case bytes() | bytearray() | memoryview():
            return bytes_text(bytes(value))
        case Mapping():
            return {_name(name): _inside(one, str(name)) for name, one in value.items()}
        case list() | tuple():
            return [_inside(one, f"[{number}]") for number, one in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {one.name: _inside(getattr(value, one.name), one.name) for one in fields}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        # A number out of a data frame.
        return plain(value.item())
    raise ValueDoesNotFit(f"there is no way to write {shown(value)}")


def body_of(value: Any) -> bytes:
    """The same bytes for the same value, by which a server knows a request again."""
    try:
        return _encode(plain(value))
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise ValueDoesNotFit(f"it cannot be written as JSON: {error}") from None


def key_text(key: Any) -> str:
    """One field as its text, several as an object."""
    found = plain(key)
    return found if isinstance(found, str) else _encode(found).decode()


def literal(value: Any) -> str:
    """As it stands in a filter."""
    return _encode(plain(value)).decode()


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueDoesNotFit(f"names are texts, not {shown(name)}")
    return name


def _inside(value: Any, at: str) -> Any:
    try:
        return plain(value)
    except ValueDoesNotFit as error:
        raise error.inside(at) from None
