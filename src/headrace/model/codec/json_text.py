"""A strict JSON parser. It never alters a value: it raises ``ValueDoesNotFit`` for input that it cannot preserve.

Python's own parser accepts more than JSON allows, and loses information. If two fields have the same name, it retains
the last. It accepts ``NaN`` and half surrogate pairs, and it reads fractions as floats. This parser returns a number
as its text. The kind of the field decides later how to convert the text.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from headrace.model.errors import ValueDoesNotFit

__all__ = [
    "FractionText",
    "NumberText",
    "describe_json",
    "describe_python",
    "key_step",
    "parse",
    "parse_plain",
]

_LEVELS_MAX = 200
_NUMBER_CHARS_MAX = 1_000
_SHOWN_CHARS_MAX = 60

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"|([\[{])|[\]}]', re.DOTALL)


class NumberText(str):
    """The text of a whole number."""

    __slots__ = ()


class FractionText(NumberText):
    """The text of a number with a point or an exponent."""

    __slots__ = ()


def parse(raw: bytes) -> Any:
    """Return the parsed value: dicts, lists, text, ``NumberText``, booleans and None."""
    return _parse(raw, _decoder)


def parse_plain(raw: bytes) -> Any:
    """Like ``parse``, but return numbers as int, or as Decimal if they have a point or an exponent."""
    return _parse(raw, _plain_decoder)


def _parse(raw: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise ValueDoesNotFit(f"not UTF-8: byte {error.start} is 0x{byte:02x}") from None
    if text.count("[") + text.count("{") > _LEVELS_MAX:
        _expect_levels(text)
    try:
        parsed = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise ValueDoesNotFit(f"not JSON: {error.msg}, at character {error.pos}") from None
    except RecursionError:
        raise ValueDoesNotFit("nested too deeply") from None
    if _HALF_PAIR.search(text):
        _expect_whole_characters(parsed)
    return parsed


def describe_json(value: Any) -> str:
    """Describe a parsed value for an error message."""
    match value:
        case None:
            return "null"
        case True | False:
            return str(value).lower()
        case NumberText():
            return f"the number {_shorten(value)}"
        case str():
            return f"the text {_shorten(ascii(value))}"
        case list():
            return "a list"
        case dict():
            return "an object"
    return describe_python(value)


def describe_python(value: Any) -> str:
    """Describe any Python value for an error message."""
    try:
        return f"{type(value).__name__} {_shorten(ascii(value))}"
    except ValueError:
        # Python does not format integers of more than 4,300 digits.
        return f"a huge {type(value).__name__}"


def key_step(key: Any) -> str:
    """Format a key of a map as part of a path."""
    return f"[{_shorten(ascii(key))}]"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}… ({len(text)} characters)"


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueDoesNotFit(f"the field {_shorten(ascii(name))} occurs twice")
            seen.add(name)
    return fields


def _whole_number(text: str) -> NumberText:
    return NumberText(_bounded(text))


def _fraction(text: str) -> FractionText:
    return FractionText(_bounded(text))


def _int(text: str) -> int | Decimal:
    # Only a Decimal has a negative zero.
    return Decimal(text) if text == "-0" else int(_bounded(text))


def _decimal(text: str) -> Decimal:
    return Decimal(_bounded(text))


def _bounded(text: str) -> str:
    if len(text) > _NUMBER_CHARS_MAX:
        raise ValueDoesNotFit(f"a number has {len(text)} characters (limit {_NUMBER_CHARS_MAX})")
    return text


def _constant(name: str) -> Any:
    raise ValueDoesNotFit(f'not JSON: {name} is not a number; a float field accepts the text "{name}"')


def _expect_levels(text: str) -> None:
    """Raise if the text nests too deeply. The parser's own limit varies with the depth of the call stack."""
    level = 0
    for bracket in _BRACKETS.finditer(text):
        if bracket[1]:
            level += 1
        elif bracket[0] in "]}":
            level -= 1
        if level > _LEVELS_MAX:
            raise ValueDoesNotFit(f"nested deeper than {_LEVELS_MAX} levels")


def _expect_whole_characters(value: Any) -> None:
    match value:
        case str():
            if not value.isascii() and (half := re.search("[\ud800-\udfff]", value)):
                raise ValueDoesNotFit(f"half a surrogate pair, \\u{ord(half[0]):04x}, is not a character")
        case list():
            for number, element in enumerate(value):
                try:
                    _expect_whole_characters(element)
                except ValueDoesNotFit as error:
                    raise error.inside(f"[{number}]") from None
        case dict():
            for name, element in value.items():
                _expect_whole_characters(name)
                try:
                    _expect_whole_characters(element)
                except ValueDoesNotFit as error:
                    raise error.inside(key_step(name)) from None


_decoder = json.JSONDecoder(
    object_pairs_hook=_fields, parse_int=_whole_number, parse_float=_fraction, parse_constant=_constant
)
_plain_decoder = json.JSONDecoder(
    object_pairs_hook=_fields, parse_int=_int, parse_float=_decimal, parse_constant=_constant
)
