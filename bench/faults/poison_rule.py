"""What a value must come to, read by hand: the row, or None where it does not fit the schema.

Written from the documentation of values alone, and of Python's own parser: strict, with every number kept as text.
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

__all__ = ["FIELDS", "Number", "expected_row", "strictly"]

_LEVELS_MAX = 200
_NUMBER_CHARS_MAX = 1_000
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MOMENT = re.compile(
    r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(Z|[+-]\d{2}:\d{2})", re.ASCII
)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WHOLE_DIGITS, _FRACTION_DIGITS = 12, 6


class Unfit(Exception):
    """The value is none of the schema."""


class Number(str):
    """A number of JSON, as it was written."""

    __slots__ = ()


def strictly(text: str) -> Any:
    """JSON, nothing but JSON, with no name twice; numbers as they were written."""
    level = deepest = 0
    for part in re.finditer(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[{]|[\]}]', text, re.DOTALL):
        if part[0] in "[{":
            level += 1
            deepest = max(deepest, level)
        elif part[0] in "]}":
            level -= 1
    if deepest > _LEVELS_MAX:
        raise Unfit("too deep")
    parsed = json.JSONDecoder(
        object_pairs_hook=_no_twins, parse_int=_number, parse_float=_number, parse_constant=_refuse
    ).decode(text)
    # A lone surrogate cannot be written.
    json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise Unfit("twins")
    return dict(pairs)


def _number(text: str) -> Number:
    if len(text) > _NUMBER_CHARS_MAX:
        raise Unfit("too many digits")
    return Number(text)


def _refuse(text: str) -> Any:
    raise Unfit(text)


def expected_row(value: bytes | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        parsed = strictly(value.decode())
        if not isinstance(parsed, dict):
            return None
        return _record(FIELDS, parsed)
    except (Unfit, ValueError, ArithmeticError):
        return None


def _record(fields: dict[str, tuple[bool, Callable[[Any], Any]]], given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Unfit(given)
    row = {}
    for name, (needed, read) in fields.items():
        if given.get(name) is not None:
            row[name] = read(given[name])
        elif needed:
            raise Unfit(name)
        else:
            row[name] = None
    return row


def _text(given: Any) -> str:
    if type(given) is not str:
        raise Unfit(given)
    return given


def _whole(given: Any) -> int:
    if not isinstance(given, Number) or not re.fullmatch("-?[0-9]{1,19}", given):
        raise Unfit(given)
    number = int(given)
    if not -(2**63) <= number < 2**63:
        raise Unfit(given)
    return number


def _float(given: Any) -> float:
    if not isinstance(given, Number):
        name = _text(given)
        if name not in _FLOATS:
            raise Unfit(given)
        return _FLOATS[name]
    number = float(given)
    if math.isinf(number):
        raise Unfit(given)
    return number


def _exact(given: Any) -> str:
    """Also as text; all of its digits must have room."""
    told = given if isinstance(given, Number) else _text(given)
    if not _NUMBER.fullmatch(told):
        raise Unfit(given)
    number = Decimal(told)
    if not number:
        return f"0.{'0' * _FRACTION_DIGITS}"
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if number.adjusted() >= _WHOLE_DIGITS or number.adjusted() < -_FRACTION_DIGITS:
        raise Unfit(given)
    all_digits = "".join(map(str, digits))
    cut = len(all_digits) + exponent + _FRACTION_DIGITS
    if cut < len(all_digits) and all_digits[cut:].strip("0"):
        raise Unfit(given)
    whole = all_digits[:cut].ljust(cut, "0").rjust(_FRACTION_DIGITS + 1, "0")
    return f"{'-' if sign else ''}{whole[:-_FRACTION_DIGITS]}.{whole[-_FRACTION_DIGITS:]}"


def _truth(given: Any) -> bool:
    if not isinstance(given, bool):
        raise Unfit(given)
    return given


def _moment(given: Any) -> str:
    found = _MOMENT.fullmatch(_text(given))
    if not found:
        raise Unfit(given)
    day, clock, fraction, offset = found.groups()
    if offset != "Z" and (int(offset[4:]) > 59 or (int(offset[1:3]), int(offset[4:])) > (18, 0)):
        raise Unfit(given)
    # What is finer than a microsecond is cut off.
    micros = (fraction or "").ljust(6, "0")[:6]
    moment = datetime.strptime(
        f"{day} {clock}.{micros} {'+0000' if offset == 'Z' else offset.replace(':', '')}",
        "%Y-%m-%d %H:%M:%S.%f %z",
    ).astimezone(UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _bytes(given: Any) -> str:
    told = _text(given)
    if base64.b64encode(base64.b64decode(told.encode(), validate=True)).decode() != told:
        raise Unfit(given)
    return told


def _texts(given: Any) -> list[str]:
    if not isinstance(given, list):
        raise Unfit(given)
    return [_text(one) for one in given]


def _counts(given: Any) -> dict[str, int]:
    if not isinstance(given, dict):
        raise Unfit(given)
    return {name: _whole(one) for name, one in given.items()}


FIELDS: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "id": (True, _text),
    "text": (False, _text),
    "whole": (False, _whole),
    "number": (False, _float),
    "truth": (False, _truth),
    "exact": (False, _exact),
    "at": (False, _moment),
    "raw": (False, _bytes),
    "texts": (False, _texts),
    "counts": (False, _counts),
    "part": (False, lambda given: _record({"number": (True, _whole), "name": (False, _text)}, given)),
}
"""Whether it must be there, and how it is read."""
