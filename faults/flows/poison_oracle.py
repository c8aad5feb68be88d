"""Computes the row that a value must decode to, or None if the value does not fit the schema.

The oracle follows the documented rules for values, and uses no code of the product. It uses Python's own JSON parser in
strict mode and keeps every number as text.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

__all__ = ["FIELDS", "Number", "expected_row", "parse_strict"]

_LEVELS_MAX = 200
_NUMBER_CHARS_MAX = 1_000
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(Z|[+-]\d{2}:\d{2})", re.ASCII
)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WHOLE_DIGITS, _FRACTION_DIGITS = 12, 6


class InvalidValue(Exception):
    """The value does not fit the schema."""


class Number(str):
    """A JSON number, as written."""

    __slots__ = ()


def parse_strict(text: str) -> Any:
    """Parse strict JSON without duplicate names. Numbers remain as written."""
    level = deepest = 0
    for part in re.finditer(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[{]|[\]}]', text, re.DOTALL):
        if part[0] in "[{":
            level += 1
            deepest = max(deepest, level)
        elif part[0] in "]}":
            level -= 1
    if deepest > _LEVELS_MAX:
        raise InvalidValue("nested too deeply")
    parsed = json.JSONDecoder(
        object_pairs_hook=_object_without_duplicates,
        parse_int=_number,
        parse_float=_number,
        parse_constant=_reject_constant,
    ).decode(text)
    # Encoding fails if the text has a lone surrogate.
    json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise InvalidValue("duplicate names")
    return dict(pairs)


def _number(text: str) -> Number:
    if len(text) > _NUMBER_CHARS_MAX:
        raise InvalidValue("too many digits")
    return Number(text)


def _reject_constant(text: str) -> Any:
    raise InvalidValue(text)


def expected_row(value: bytes | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        parsed = parse_strict(value.decode())
        if not isinstance(parsed, dict):
            return None
        return _record(FIELDS, parsed)
    except (InvalidValue, ValueError, ArithmeticError):
        return None


def _record(fields: dict[str, tuple[bool, Callable[[Any], Any]]], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValue(value)
    row = {}
    for name, (required, decode) in fields.items():
        if value.get(name) is not None:
            row[name] = decode(value[name])
        elif required:
            raise InvalidValue(name)
        else:
            row[name] = None
    return row


def _text(value: Any) -> str:
    if type(value) is not str:
        raise InvalidValue(value)
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, Number) or not re.fullmatch("-?[0-9]{1,19}", value):
        raise InvalidValue(value)
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise InvalidValue(value)
    return number


def _float(value: Any) -> float:
    if not isinstance(value, Number):
        name = _text(value)
        if name not in _FLOATS:
            raise InvalidValue(value)
        return _FLOATS[name]
    number = float(value)
    if math.isinf(number):
        raise InvalidValue(value)
    return number


def _decimal(value: Any) -> str:
    """Decode a decimal, which can also be written as text. All of its digits must fit."""
    text = value if isinstance(value, Number) else _text(value)
    if not _NUMBER.fullmatch(text):
        raise InvalidValue(value)
    number = Decimal(text)
    if not number:
        return f"0.{'0' * _FRACTION_DIGITS}"
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if number.adjusted() >= _WHOLE_DIGITS or number.adjusted() < -_FRACTION_DIGITS:
        raise InvalidValue(value)
    all_digits = "".join(map(str, digits))
    cut = len(all_digits) + exponent + _FRACTION_DIGITS
    if cut < len(all_digits) and all_digits[cut:].strip("0"):
        raise InvalidValue(value)
    whole = all_digits[:cut].ljust(cut, "0").rjust(_FRACTION_DIGITS + 1, "0")
    return f"{'-' if sign else ''}{whole[:-_FRACTION_DIGITS]}.{whole[-_FRACTION_DIGITS:]}"


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(value)
    return value


def _timestamp(value: Any) -> str:
    match = _TIMESTAMP.fullmatch(_text(value))
    if not match:
        raise InvalidValue(value)
    day, clock, fraction, offset = match.groups()
    if offset != "Z" and (int(offset[4:]) > 59 or (int(offset[1:3]), int(offset[4:])) > (18, 0)):
        raise InvalidValue(value)
    # Fractions of a microsecond are cut off.
    micros = (fraction or "").ljust(6, "0")[:6]
    moment = datetime.strptime(
        f"{day} {clock}.{micros} {'+0000' if offset == 'Z' else offset.replace(':', '')}",
        "%Y-%m-%d %H:%M:%S.%f %z",
    ).astimezone(UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _base64(value: Any) -> str:
    text = _text(value)
    if base64.b64encode(base64.b64decode(text.encode(), validate=True)).decode() != text:
        raise InvalidValue(value)
    return text


def _list_of_texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidValue(value)
    return [_text(item) for item in value]


def _map_of_integers(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise InvalidValue(value)
    return {name: _integer(item) for name, item in value.items()}


FIELDS: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "id": (True, _text),
    "text": (False, _text),
    "whole": (False, _integer),
    "number": (False, _float),
    "truth": (False, _boolean),
    "exact": (False, _decimal),
    "at": (False, _timestamp),
    "raw": (False, _base64),
    "texts": (False, _list_of_texts),
    "counts": (False, _map_of_integers),
    "part": (False, lambda value: _record({"number": (True, _integer), "name": (False, _text)}, value)),
}
"""For each field: whether it is required, and how to decode it."""
