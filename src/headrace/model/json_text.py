"""JSON, read with care: nothing in it is altered, and what cannot be taken as it stands is refused with a reason.

Python's own parser takes more than JSON allows and loses more than it says: of two fields of one name it keeps the
last, it takes ``NaN`` and half surrogate pairs, and it reads numbers as floats. Here a number stays the text that it
was, until its field says what to make of it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from headrace.model.errors import ValueDoesNotFit

__all__ = ["FractionText", "NumberText", "found", "parse", "shown", "step"]

_LEVELS_MAX = 200
_NUMBER_CHARS_MAX = 1_000
_SHOWN_CHARS_MAX = 60

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"|([\[{])|[\]}]', re.DOTALL)


class NumberText(str):
    """A whole number, as it was written."""

    __slots__ = ()


class FractionText(NumberText):
    """A number with a point or an exponent, as it was written."""

    __slots__ = ()


def parse(raw: bytes) -> Any:
    """Objects as dicts, lists, text, ``NumberText``, booleans and None."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise ValueDoesNotFit(f"not UTF-8: byte {error.start} is 0x{byte:02x}") from None
    if text.count("[") + text.count("{") > _LEVELS_MAX:
        _expect_levels(text)
    try:
        parsed = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise ValueDoesNotFit(f"not JSON: {error.msg}, at character {error.pos}") from None
    except RecursionError:
        raise ValueDoesNotFit("nested too deeply") from None
    if _HALF_PAIR.search(text):
        _expect_whole_characters(parsed)
    return parsed


def found(value: Any) -> str:
    """What a parsed value is, in words."""
    match value:
        case None:
            return "null"
        case True | False:
            return str(value).lower()
        case NumberText():
            return f"the number {_short(value)}"
        case str():
            return f"the text {_short(ascii(value))}"
        case list():
            return "a list"
        case dict():
            return "an object"
    return shown(value)


def shown(value: Any) -> str:
    """Any Python value, in a few words."""
    try:
        return f"{type(value).__name__} {_short(ascii(value))}"
    except ValueError:
        # Python does not write out integers of more than 4,300 digits.
        return f"a huge {type(value).__name__}"


def step(key: Any) -> str:
    """A key of a map, as a part of a path."""
    return f"[{_short(ascii(key))}]"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}… ({len(text)} characters)"


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueDoesNotFit(f"the field {_short(ascii(name))} is there twice")
            seen.add(name)
    return made


def _whole(text: str) -> NumberText:
    return NumberText(_bounded(text))


def _fraction(text: str) -> FractionText:
    return FractionText(_bounded(text))


def _bounded(text: str) -> str:
    if len(text) > _NUMBER_CHARS_MAX:
        raise ValueDoesNotFit(f"a number of {len(text)} characters, where {_NUMBER_CHARS_MAX} are allowed")
    return text


def _constant(name: str) -> Any:
    raise ValueDoesNotFit(f'not JSON: {name} is no number in it; a float field takes the text "{name}"')


def _expect_levels(text: str) -> None:
    """A text with many brackets may still be flat; the parser's own limit depends on who calls it."""
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
                raise ValueDoesNotFit(f"half a surrogate pair, \\u{ord(half[0]):04x}, is no character")
        case list():
            for number, one in enumerate(value):
                try:
                    _expect_whole_characters(one)
                except ValueDoesNotFit as error:
                    raise error.inside(f"[{number}]") from None
        case dict():
            for name, one in value.items():
                _expect_whole_characters(name)
                try:
                    _expect_whole_characters(one)
                except ValueDoesNotFit as error:
                    raise error.inside(step(name)) from None


_decoder = json.JSONDecoder(
    object_pairs_hook=_fields, parse_int=_whole, parse_float=_fraction, parse_constant=_constant
)
